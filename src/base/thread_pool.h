// A fixed set of worker threads that run parallel loops. Every worker, and the caller while it takes part,
// computes with subnormals flushed (FTZ and DAZ), as the numerics identity x86-bf16-v1 asks.
//
// A decode step is some hundred loops of a few microseconds each, so a loop must start and end without a lock
// or a system call: idle workers watch a word for some tens of microseconds before they sleep, and a worker
// that comes too late is not waited for.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
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
  // One run at a time, and none from inside a body.
  template <typename Body>
  void run(int64_t count, const Body& body) {
    run_loop(count, {.object = &body, .call = [](const void* object, int64_t begin, int64_t end) {
                       const Body& f = *static_cast<const Body*>(object);
                       for (int64_t i = begin; i < end; ++i) f(i);
                     }});
  }

 private:
  // A reference to the caller's body, which outlives the loop.
  struct Loop {
    const void* object = nullptr;
    void (*call)(const void* object, int64_t begin, int64_t end) = nullptr;
  };

  void run_loop(int64_t count, const Loop& loop);
  void work();
  void drain();

  // The word that workers watch: a counter of loops, whether the loop still takes workers, and how many are
  // in it. The fields behind it change only while the loop is closed and nobody is in it.
  static constexpr uint32_t kWorkers = 0x3FF, kOpen = 0x400, kLoop = 0x800;
  alignas(64) std::atomic<uint32_t> state_ = 0;
  Loop loop_;
  int64_t count_ = 0, grain_ = 1;
  std::exception_ptr error_;

  alignas(64) std::atomic<int64_t> next_ = 0;    // first index that nobody has taken
  alignas(64) std::atomic<uint32_t> ended_ = 0;  // counts loops whose last worker left, for a caller asleep
  std::atomic<bool> stop_ = false;
  std::mutex error_mutex_;
  int spins_ = 0;  // looks at a word before sleeping
  std::vector<std::thread> workers_;
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
