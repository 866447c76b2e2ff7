// A fixed set of worker threads that run parallel loops. Every worker, and the caller while it takes part,
// computes with subnormals flushed (FTZ and DAZ), as the numerics identity x86-bf16-v1 asks.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace perigee {

class ThreadPool {
 public:
  // `threads` counts the calling thread: 1 means no worker at all.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs body(i) for every i in [0, count), in any order and on any thread; returns when all are done. The
  // result of body(i) must not depend on which thread ran it. An exception thrown by a body is rethrown here.
  void run(int64_t count, const std::function<void(int64_t)>& body);

 private:
  void work();
  void drain(const std::function<void(int64_t)>& body);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int64_t)>* body_ = nullptr;
  int64_t next_ = 0, count_ = 0;
  int busy_ = 0;
  uint64_t generation_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
};

// Sets FTZ and DAZ on this thread for the life of the object, and restores what was there.
class FlushSubnormals {
 public:
  FlushSubnormals();
  ~FlushSubnormals();
  FlushSubnormals(const FlushSubnormals&) = delete;

 private:
  unsigned saved_;
};

}  // namespace perigee
