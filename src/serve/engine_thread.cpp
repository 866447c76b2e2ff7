#include "serve/engine_thread.h"

#include <algorithm>
#include <chrono>

namespace perigee::serve {

EngineThread::EngineThread(Runner& runner, const PrefixCacheOptions& prefixes, EngineOptions options)
    : runner_(runner), prefixes_(runner.pool(), prefixes) {
  engine_.emplace(runner_, prefixes_.tree(), std::move(options));
  stats_ = engine_->stats();
  cache_rows_ = count_rows();
  thread_ = std::thread([this] { work(); });
}

void EngineThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Ticket EngineThread::submit(Request request, Listener listener) {
  Ticket ticket;
  {
    const std::lock_guard lock(mutex_);
    ticket = next_++;
    submissions_.push_back({ticket, std::move(request), std::move(listener)});
  }
  wake_.notify_one();
  return ticket;
}

void EngineThread::cancel(Ticket ticket, int branch) {
  {
    const std::lock_guard lock(mutex_);
    cancellations_.push_back({ticket, branch});
  }
  wake_.notify_one();
}

Engine::Stats EngineThread::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

CacheRows EngineThread::cache_rows() const {
  const std::lock_guard lock(mutex_);
  return cache_rows_;
}

// Looks at every row: not for every step.
CacheRows EngineThread::count_rows() {
  const CachePool& pool = runner_.pool();
  std::vector<int64_t> of_tree(static_cast<size_t>(pool.rows()));
  CacheRows out{.free = pool.free_rows()};
  if (const PrefixTree* tree = prefixes_.tree()) {
    tree->check_integrity(of_tree);
    const PrefixTree::Stats stats = tree->stats();
    out.checkpoints = stats.checkpoints;
    out.checkpoint_rows = stats.checkpoints * pool.plan().state_rows();
    out.evicted = stats.evicted_rows;
  }
  for (size_t row = 0; row < of_tree.size(); ++row) {
    const int64_t all = pool.references(static_cast<RowId>(row));
    if (all == 0) continue;
    ++(of_tree[row] == 0 ? out.requests : of_tree[row] == all ? out.prefixes : out.shared);
  }
  return out;
}

void EngineThread::pause() {
  const std::lock_guard lock(mutex_);
  paused_ = true;
}

void EngineThread::resume() {
  {
    const std::lock_guard lock(mutex_);
    paused_ = false;
  }
  wake_.notify_one();
}

bool EngineThread::reset_prefix_cache() {
  std::unique_lock lock(mutex_);
  ++resets_wanted_;
  wake_.notify_one();
  quiet_.wait(lock, [this] { return resets_wanted_ == 0 || stopping_; });
  return reset_done_;
}

void EngineThread::take_in(Submission& submission) {
  const int branches = submission.request.n;
  try {
    const RequestId id = engine_->submit(std::move(submission.request));
    live_.emplace(id, Live{submission.ticket, std::move(submission.listener), branches});
    requests_.emplace(submission.ticket, id);
  } catch (const Error& error) {
    submission.listener.on_refused(error);
  } catch (const std::exception& error) {
    submission.listener.on_refused(Error(ErrorCode::kInternal, error.what()));
  }
}

void EngineThread::deliver() {
  for (Event& event : engine_->take_events()) {
    const auto live = live_.find(event.request);
    if (live == live_.end()) continue;
    const bool last = event.finish != FinishReason::kNone && --live->second.branches == 0;
    const auto on_event = live->second.listener.on_event;
    if (last) {
      requests_.erase(live->second.ticket);
      live_.erase(live);
    }
    on_event(std::move(event));
  }
}

// Errors of a step end the requests concerned, inside the engine. What else is thrown (memory is out) must
// not end the server.
void EngineThread::run_step() {
  try {
    engine_->step();
  } catch (const std::exception& error) {
    for (auto& [id, live] : std::exchange(live_, {})) {
      live.listener.on_event({.request = id, .finish = FinishReason::kError, .error = error.what()});
      engine_->cancel(id);
    }
    requests_.clear();
  }
}

void EngineThread::work() {
  using Clock = std::chrono::steady_clock;
  // Counting takes a hundredth of the time at most, however many rows there are.
  constexpr Clock::duration kBetweenCounts = std::chrono::seconds(1);
  Clock::time_point next_count = Clock::now() + kBetweenCounts;
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto work_to_do = [this] { return !engine_->idle() && !paused_; };
    wake_.wait(lock, [&] {
      return stopping_ || !submissions_.empty() || !cancellations_.empty() || resets_wanted_ > 0 ||
             work_to_do();
    });
    if (stopping_) break;
    auto submissions = std::exchange(submissions_, {});
    auto cancellations = std::exchange(cancellations_, {});
    const bool step = !paused_;
    if (resets_wanted_ > 0 && submissions.empty()) {
      reset_done_ = engine_->reset_prefix_cache();
      resets_wanted_ = 0;
      quiet_.notify_all();
    }
    lock.unlock();
    for (Submission& submission : submissions) take_in(submission);
    for (const Cancellation& c : cancellations)
      if (const auto id = requests_.find(c.ticket); id != requests_.end())
        engine_->cancel(id->second, c.branch);
    if (step || !cancellations.empty()) {
      if (step) run_step();
      deliver();
    }
    const Engine::Stats stats = engine_->stats();
    std::optional<CacheRows> rows;
    if (const auto now = Clock::now(); engine_->idle() || now > next_count) {
      try {
        rows = count_rows();
      } catch (const Error&) {  // a tree that contradicts itself: the engine's own checks say so
      }
      const Clock::time_point done = Clock::now();
      next_count = done + std::max(kBetweenCounts, 100 * (done - now));
    }
    lock.lock();
    stats_ = stats;
    if (rows) cache_rows_ = *rows;
  }
  quiet_.notify_all();
}

}  // namespace perigee::serve
