// Counters, gauges and histograms, as Prometheus text. Names are vLLM's behind "perigee:", and behind "vllm:"
// too where dashboards made for it are to work.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "serve/engine_port.h"

namespace perigee::serve {

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void observe(double x);

  struct Reading {
    std::vector<uint64_t> counts;  // one per bound, and what lies above the last
    double sum = 0;
  };
  Reading read() const;
  const std::vector<double>& bounds() const { return bounds_; }

 private:
  std::vector<double> bounds_;
  mutable std::mutex mutex_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
};

class Metrics {
 public:
  Metrics();

  // Counts a request from when it is taken in until it is let go of.
  class InFlight {
   public:
    explicit InFlight(Metrics& metrics) : metrics_(metrics) { ++metrics_.in_flight_; }
    ~InFlight() { --metrics_.in_flight_; }
    InFlight(const InFlight&) = delete;
    InFlight& operator=(const InFlight&) = delete;

   private:
    Metrics& metrics_;
  };
  int64_t in_flight() const { return in_flight_; }

  Histogram time_to_first_token, inter_token, time_per_output_token, e2e, prompt_tokens, generation_tokens, n,
      max_tokens;
  std::atomic<int64_t> rejections = 0, prompt_tokens_total = 0;
  void finished(const std::string& reason);

  // Prometheus text; `vllm`: every name twice.
  std::string text(const Engine::Stats& stats, const CacheRows& rows, size_t connections,
                   const std::string& model, bool vllm) const;

 private:
  std::atomic<int64_t> in_flight_ = 0;
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> finished_;
};

}  // namespace perigee::serve
