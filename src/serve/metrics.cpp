#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>

namespace perigee::serve {

namespace {

const std::vector<double> kLatency = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                      1,     2.5,    5,     10,   20,    40,   80,  160,  640};
const std::vector<double> kLong = {0.1, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5, 5,   10,
                                   15,  20,  30,  60,  120, 240, 480, 960, 1920};
const std::vector<double> kTokens = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                                     2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
const std::vector<double> kAnswers = {1, 2, 5, 10, 20, 50, 100};

// Writes families under one prefix.
class Writer {
 public:
  Writer(std::string prefix, const std::string& model) : prefix_(std::move(prefix)) {
    for (char c : model) {
      if (c == '"' || c == '\\') labels_ += '\\';
      labels_ += c == '\n' ? ' ' : c;
    }
    labels_ = "engine=\"0\",model_name=\"" + labels_ + "\"";
  }

  void head(std::string_view name, std::string_view type, std::string_view help) {
    out_ += fmt::format("# HELP {}{} {}\n# TYPE {}{} {}\n", prefix_, name, help, prefix_, name, type);
  }
  void value(std::string_view name, double x, const std::string& more = "") {
    out_ += fmt::format("{}{}{{{}{}}} {}\n", prefix_, name, labels_, more, x);
  }
  void gauge(std::string_view name, std::string_view help, double x) {
    head(name, "gauge", help);
    value(name, x);
  }
  void counter(std::string_view name, std::string_view help, double x) {
    head(fmt::format("{}_total", name), "counter", help);
    value(fmt::format("{}_total", name), x);
  }
  void histogram(std::string_view name, std::string_view help, const Histogram& h) {
    head(name, "histogram", help);
    const Histogram::Reading r = h.read();
    uint64_t sum = 0;
    for (size_t i = 0; i < r.counts.size(); ++i) {
      sum += r.counts[i];
      const std::string bound = i < h.bounds().size() ? fmt::format("{}", h.bounds()[i]) : "+Inf";
      value(fmt::format("{}_bucket", name), static_cast<double>(sum), fmt::format(",le=\"{}\"", bound));
    }
    value(fmt::format("{}_sum", name), r.sum);
    value(fmt::format("{}_count", name), static_cast<double>(sum));
  }
  std::string take() { return std::move(out_); }

 private:
  std::string prefix_, labels_, out_;
};

}  // namespace

void Histogram::observe(double x) {
  const size_t at = std::lower_bound(bounds_.begin(), bounds_.end(), x) - bounds_.begin();
  const std::lock_guard lock(mutex_);
  ++counts_[at];
  sum_ += x;
}

Histogram::Reading Histogram::read() const {
  const std::lock_guard lock(mutex_);
  return {counts_, sum_};
}

Metrics::Metrics()
    : time_to_first_token(kLatency),
      inter_token(kLatency),
      time_per_output_token(kLatency),
      e2e(kLong),
      prompt_tokens(kTokens),
      generation_tokens(kTokens),
      n(kAnswers),
      max_tokens(kTokens) {}

void Metrics::finished(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  ++finished_[reason];
}

std::string Metrics::text(const Engine::Stats& s, const CacheRows& rows, size_t connections,
                          const std::string& model, bool vllm) const {
  std::string all;
  std::map<std::string, int64_t> finished;
  {
    const std::lock_guard lock(mutex_);
    finished = finished_;
  }
  for (const char* prefix : {"perigee:", "vllm:"}) {
    if (prefix[0] == 'v' && !vllm) continue;
    Writer w(prefix, model);
    const auto real = [](int64_t x) { return static_cast<double>(x); };
    w.gauge("num_requests_running", "Answers being computed.", real(s.running));
    w.gauge("num_requests_waiting", "Answers waiting for their turn.", real(s.waiting));
    w.gauge("num_http_requests", "API requests taken in and not yet answered.", real(in_flight_));
    w.gauge("num_connections", "Open connections.", static_cast<double>(connections));
    w.gauge("kv_cache_usage_perc", "Share of the cache's rows held by running requests, 0 to 1.",
            s.rows > 0 ? real(s.rows_in_use) / real(s.rows) : 0);
    w.head("cache_rows", "gauge", "Rows of the cache by who holds them.");
    for (const auto& [owner, count] : {std::pair("free", rows.free),
                                       {"requests", rows.requests},
                                       {"shared", rows.shared},
                                       {"prefixes", rows.prefixes}})
      w.value("cache_rows", real(count), fmt::format(",owner=\"{}\"", owner));
    w.gauge("prefix_checkpoints", "States kept in the prefix tree.", real(rows.checkpoints));
    w.gauge("prefix_checkpoint_rows", "Rows of the prefix tree that hold those states.",
            real(rows.checkpoint_rows));
    w.counter("prefix_evicted_rows", "Rows that the prefix tree has given up.", real(rows.evicted));
    w.counter("prefix_cache_queries", "Prompt tokens looked up in the prefix tree.",
              real(prompt_tokens_total));
    w.counter("prefix_cache_hits", "Prompt tokens found in the prefix tree.", real(s.cached_tokens));
    w.counter("prompt_tokens", "Prompt tokens of requests.", real(prompt_tokens_total));
    w.counter("prompt_tokens_computed", "Prompt tokens computed, those of preempted requests again.",
              real(s.prompt_tokens));
    w.counter("generation_tokens", "Tokens generated.", real(s.generated_tokens));
    w.counter("num_preemptions", "Running requests that made room for others.", real(s.preemptions));
    w.counter("num_steps", "Engine steps.", real(s.steps));
    w.counter("spec_decode_num_draft_tokens", "Draft tokens verified.", real(s.draft_tokens));
    w.counter("spec_decode_num_accepted_tokens", "Draft tokens accepted.", real(s.accepted_draft_tokens));
    w.counter("corrupted_requests", "Answers that an error in a step ended.", real(s.failed));
    w.counter("admission_rejections", "Requests refused for overload.", real(rejections));
    w.head("request_success_total", "counter", "Answers finished.");
    for (const auto& [reason, count] : finished)
      w.value("request_success_total", real(count), fmt::format(",finished_reason=\"{}\"", reason));
    w.histogram("time_to_first_token_seconds", "From request to first token.", time_to_first_token);
    w.histogram("inter_token_latency_seconds", "Between tokens of an answer.", inter_token);
    w.histogram("request_time_per_output_token_seconds", "Mean of an answer after its first token.",
                time_per_output_token);
    w.histogram("e2e_request_latency_seconds", "From request to the end of the answer.", e2e);
    w.histogram("request_prompt_tokens", "Prompt tokens of a request.", prompt_tokens);
    w.histogram("request_generation_tokens", "Tokens of an answer.", generation_tokens);
    w.histogram("request_params_n", "The parameter n.", n);
    w.histogram("request_params_max_tokens", "The parameter max_tokens.", max_tokens);
    all += w.take();
  }
  return all;
}

}  // namespace perigee::serve
