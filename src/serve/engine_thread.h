// The thread that owns the engine. Everybody else hands it commands through a queue; between commands it
// steps.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cache/prefix_cache.h"
#include "serve/engine_port.h"

namespace perigee::serve {

class EngineThread : public EnginePort {
 public:
  // The runner outlives it.
  EngineThread(Runner& runner, const PrefixCacheOptions& prefixes, EngineOptions options);
  ~EngineThread() override { stop(); }
  // Stops at the end of the step being computed; requests still running hear nothing more.
  void stop();

  Ticket submit(Request request, Listener listener) override;
  void cancel(Ticket ticket, int branch) override;
  Engine::Stats stats() const override;
  CacheRows cache_rows() const override;
  void pause() override;
  void resume() override;
  bool reset_prefix_cache() override;

 private:
  struct Submission {
    Ticket ticket;
    Request request;
    Listener listener;
  };
  struct Cancellation {
    Ticket ticket;
    int branch;
  };
  struct Live {
    Ticket ticket;
    Listener listener;
    int branches;  // not yet finished
  };

  void work();
  void take_in(Submission& submission);
  void run_step();
  void deliver();
  CacheRows count_rows();

  Runner& runner_;
  PrefixCache prefixes_;
  std::optional<Engine> engine_;
  std::unordered_map<RequestId, Live> live_;        // the engine thread's
  std::unordered_map<Ticket, RequestId> requests_;  // of live ones

  mutable std::mutex mutex_;
  std::condition_variable wake_, quiet_;
  std::vector<Submission> submissions_;
  std::vector<Cancellation> cancellations_;
  Engine::Stats stats_;
  CacheRows cache_rows_;
  Ticket next_ = 1;
  bool stopping_ = false, paused_ = false;
  int resets_wanted_ = 0;
  bool reset_done_ = false;
  std::thread thread_;
};

}  // namespace perigee::serve
