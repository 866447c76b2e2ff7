#include "base/thread_pool.h"

#include <immintrin.h>

#include <algorithm>
#include <exception>

namespace perigee {

namespace {
constexpr unsigned kFtzDaz = 0x8040;
}

FlushSubnormals::FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | kFtzDaz); }
FlushSubnormals::~FlushSubnormals() { _mm_setcsr(saved_); }

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& w : workers_) w.join();
}

void ThreadPool::drain(const std::function<void(int64_t)>& body) {
  for (;;) {
    int64_t begin, end;
    {
      // A few items at a time: enough to keep the lock cold, few enough to balance the load.
      std::lock_guard lock(mutex_);
      if (next_ >= count_) return;
      const int64_t grain = std::max<int64_t>(1, count_ / (threads() * 8));
      begin = next_;
      end = std::min(count_, begin + grain);
      next_ = end;
    }
    try {
      for (int64_t i = begin; i < end; ++i) body(i);
    } catch (...) {
      std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      next_ = count_;
      return;
    }
  }
}

void ThreadPool::work() {
  FlushSubnormals flush;
  uint64_t seen = 0;
  for (;;) {
    const std::function<void(int64_t)>* body;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
      body = body_;
      if (!body) continue;
      ++busy_;
    }
    drain(*body);
    std::lock_guard lock(mutex_);
    if (--busy_ == 0) done_.notify_all();
  }
}

void ThreadPool::run(int64_t count, const std::function<void(int64_t)>& body) {
  FlushSubnormals flush;
  if (workers_.empty() || count <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    body_ = &body;
    next_ = 0;
    count_ = count;
    error_ = nullptr;
    ++generation_;
  }
  wake_.notify_all();
  drain(body);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return busy_ == 0; });
  body_ = nullptr;
  if (error_) std::rethrow_exception(error_);
}

}  // namespace perigee
