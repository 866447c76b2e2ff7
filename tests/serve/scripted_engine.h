// An engine port without a model: it "generates" what a script says, token by token, on a thread of its own,
// and counts what the server does with it. For tests of the server alone.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

#include "serve/engine_port.h"

namespace perigee::serve {

class ScriptedEngine : public EnginePort {
 public:
  struct Answer {
    std::vector<int32_t> tokens;
    FinishReason finish = FinishReason::kStop;
    std::string error = {};
  };
  // Of a request's branch. Thrown Errors are refusals.
  using Script = std::function<Answer(const Request& request, int branch)>;

  // `burst` tokens an event, `delay` between steps.
  explicit ScriptedEngine(Script script, int burst = 1, std::chrono::microseconds delay = {})
      : script_(std::move(script)), burst_(burst), delay_(delay), thread_([this] { work(); }) {}
  ~ScriptedEngine() override { stop(); }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
    live_.clear();  // they hold replies, which must not outlive the server
    arrived_.clear();
  }

  Ticket submit(Request request, Listener listener) override {
    const std::lock_guard lock(mutex_);
    requests.push_back(request);
    arrived_.push_back({next_, std::move(request), std::move(listener)});
    wake_.notify_all();
    return next_++;
  }
  void cancel(Ticket ticket, int branch = Engine::kAllBranches) override {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back({ticket, branch});
    wake_.notify_all();
  }
  Engine::Stats stats() const override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  CacheRows cache_rows() const override { return {.free = 5, .requests = 1, .prefixes = 4, .shared = 2}; }
  void pause() override { set_paused(true); }
  void resume() override { set_paused(false); }
  bool reset_prefix_cache() override {
    const std::lock_guard lock(mutex_);
    return live_.empty();
  }
  int64_t live() const {
    const std::lock_guard lock(mutex_);
    return stats_.running + static_cast<int64_t>(arrived_.size());
  }
  std::vector<Request> seen() const {
    const std::lock_guard lock(mutex_);
    return requests;
  }

 private:
  struct Arrived {
    Ticket ticket;
    Request request;
    Listener listener;
  };
  struct Branch {
    Ticket ticket;
    int branch;
    Listener listener;
    Answer answer;
    std::vector<GeneratedToken> prompt;
    size_t at = 0;
    bool cancelled = false;
  };

  void set_paused(bool paused) {
    const std::lock_guard lock(mutex_);
    paused_ = paused;
    wake_.notify_all();
  }

  void take_in(Arrived& a) {
    try {
      std::vector<GeneratedToken> prompt;
      for (size_t i = 1; a.request.prompt_logprobs >= 0 && i < a.request.prompt.size(); ++i)
        prompt.push_back({.id = a.request.prompt[i], .logprob = -0.25f * static_cast<float>(i)});
      std::list<Branch> branches;
      for (int b = 0; b < a.request.n; ++b)
        branches.push_back({a.ticket, b, a.listener, script_(a.request, b),
                            b == 0 ? prompt : std::vector<GeneratedToken>()});
      live_.splice(live_.end(), branches);
    } catch (const Error& error) {
      a.listener.on_refused(error);
    }
  }

  // One event of a branch; true when it was its last.
  bool step(Branch& b) {
    Event event{.branch = b.branch, .prompt_tokens = std::exchange(b.prompt, {})};
    for (int i = 0; i < burst_ && b.at < b.answer.tokens.size(); ++i, ++b.at) {
      const int32_t id = b.answer.tokens[b.at];
      event.tokens.push_back({.id = id, .logprob = -0.5f, .top = {{id, -0.5f}, {id + 1, -1.5f}}});
    }
    stats_.generated_tokens += static_cast<int64_t>(event.tokens.size());
    if (b.cancelled)
      event = {.branch = b.branch, .finish = FinishReason::kCancelled};
    else if (b.at == b.answer.tokens.size())
      event.finish = b.answer.finish;
    event.error = b.answer.error;
    const bool last = event.finish != FinishReason::kNone;
    b.listener.on_event(std::move(event));
    return last;
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      wake_.wait(lock, [this] {
        return stopping_ || !arrived_.empty() || !cancelled_.empty() || (!live_.empty() && !paused_);
      });
      for (Arrived& a : std::exchange(arrived_, {})) take_in(a);
      for (const auto& [ticket, branch] : std::exchange(cancelled_, {}))
        for (Branch& b : live_)
          if (b.ticket == ticket && (branch == Engine::kAllBranches || branch == b.branch))
            b.cancelled = true;
      if (!paused_) live_.remove_if([this](Branch& b) { return step(b); });
      stats_.running = static_cast<int64_t>(live_.size());
      if (delay_.count() > 0 && !live_.empty()) {
        lock.unlock();
        std::this_thread::sleep_for(delay_);
        lock.lock();
      }
    }
  }

  Script script_;
  int burst_;
  std::chrono::microseconds delay_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Request> requests;
  std::vector<Arrived> arrived_;
  std::vector<std::pair<Ticket, int>> cancelled_;
  std::list<Branch> live_;
  Engine::Stats stats_;
  Ticket next_ = 1;
  bool stopping_ = false, paused_ = false;
  std::thread thread_;
};

}  // namespace perigee::serve
