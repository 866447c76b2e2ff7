#include "base/thread_pool.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace perigee {

namespace {
constexpr unsigned kFtzDaz = 0x8040;
constexpr int kSpins = 1000;  // a pause takes 40 to 140 cycles: 20 to 50 µs

// Cores this process may run on. A worker that spins on the only core keeps the others from their work.
int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}
}  // namespace

FlushSubnormals::FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | kFtzDaz); }
FlushSubnormals::~FlushSubnormals() { _mm_setcsr(saved_); }

ThreadPool::ThreadPool(int threads) : spins_(threads <= usable_cores() ? kSpins : 0) {
  check(threads <= static_cast<int>(kWorkers), "ThreadPool: at most 1023 threads");
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  state_.fetch_add(kLoop);
  state_.notify_all();
  for (auto& w : workers_) w.join();
}

void ThreadPool::drain() {
  try {
    for (;;) {
      const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
      if (begin >= count_) return;
      loop_.call(loop_.object, begin, std::min(count_, begin + grain_));
    }
  } catch (...) {
    std::lock_guard lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
    next_ = count_;
  }
}

void ThreadPool::work() {
  FlushSubnormals flush;
  uint32_t seen = 0;  // counter of the last loop this worker was in
  for (int spin = 0;;) {
    uint32_t state = state_.load(std::memory_order_acquire);
    if (stop_) return;
    if ((state & kOpen) && state / kLoop != seen) {
      if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) continue;
      seen = state / kLoop;
      drain();
      const uint32_t left = state_.fetch_sub(1, std::memory_order_acq_rel) - 1;
      if ((left & (kOpen | kWorkers)) == 0) {
        ended_.fetch_add(1, std::memory_order_release);
        ended_.notify_one();
      }
      spin = 0;
    } else if (spin < spins_) {
      ++spin;
      _mm_pause();
    } else {
      state_.wait(state, std::memory_order_acquire);
      spin = 0;
    }
  }
}

void ThreadPool::run_loop(int64_t count, const Loop& loop) {
  FlushSubnormals flush;
  if (workers_.empty() || count <= 1) {
    loop.call(loop.object, 0, count);
    return;
  }
  loop_ = loop;
  count_ = count;
  grain_ = std::max<int64_t>(1, count / (threads() * 8));  // some rounds a thread, to balance the load
  error_ = nullptr;
  next_.store(0, std::memory_order_relaxed);
  state_.store((state_.load(std::memory_order_relaxed) / kLoop + 1) * kLoop | kOpen,
               std::memory_order_release);
  state_.notify_all();
  drain();
  uint32_t state = state_.fetch_and(~kOpen, std::memory_order_acq_rel);
  for (int spin = 0; (state & kWorkers) != 0; ++spin) {
    const uint32_t ended = ended_.load(std::memory_order_acquire);
    state = state_.load(std::memory_order_acquire);
    if ((state & kWorkers) == 0) break;
    if (spin < spins_) {
      _mm_pause();
    } else {
      ended_.wait(ended, std::memory_order_acquire);
    }
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace perigee
