// The pool runs every index once, rethrows, and computes with subnormals flushed.
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace perigee {

TEST(ThreadPool, RunsEveryIndexOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> hits(count);
      pool.run(count, [&](int64_t i) { ++hits[i]; });
      for (auto& h : hits) EXPECT_EQ(h, 1);
    }
  }
}

TEST(ThreadPool, RethrowsAndGoesOn) {
  ThreadPool pool(3);
  EXPECT_THROW(pool.run(100,
                        [](int64_t i) {
                          if (i == 41) throw std::runtime_error("x");
                        }),
               std::runtime_error);
  std::atomic<int> n = 0;
  pool.run(100, [&](int64_t) { ++n; });
  EXPECT_EQ(n, 100);
}

// Short loops one after another: workers come late, or not at all, and must never see a loop that has ended.
TEST(ThreadPool, ManyShortLoops) {
  for (int threads : {2, 3, 8}) {
    ThreadPool pool(threads);
    for (int loop = 0; loop < 3000; ++loop) {
      const int64_t count = 2 + loop % 40;
      std::vector<int64_t> seen(count, -1);  // a local of this loop: a late worker would write into the next
      pool.run(count, [&](int64_t i) { seen[i] = loop + i; });
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(seen[i], loop + i) << threads << " threads";
    }
  }
}

// Workers that have gone to sleep wake up.
TEST(ThreadPool, SleepersWake) {
  ThreadPool pool(2);
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int> inside = 0, met = 0;
    pool.run(2, [&](int64_t) {  // the first waits for the second, ten seconds at most
      ++inside;
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (inside < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      met += inside == 2;
    });
    EXPECT_EQ(met, 2);
  }
}

// The caller, with nothing left to take, sleeps until the worker's long body has ended.
TEST(ThreadPool, WaitsForEveryBody) {
  ThreadPool pool(2);
  const auto caller = std::this_thread::get_id();
  for (int i = 0; i < 5; ++i) {
    std::atomic<bool> worker_in = false, worker_out = false;
    pool.run(2, [&](int64_t) {
      if (std::this_thread::get_id() == caller) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        while (!worker_in && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      } else {
        worker_in = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        worker_out = true;
      }
    });
    EXPECT_TRUE(worker_in);
    EXPECT_TRUE(worker_out);
  }
}

TEST(ThreadPool, FlushesSubnormals) {
  ThreadPool pool(2);
  std::vector<float> out(64);
  pool.run(64, [&](int64_t i) {
    volatile float tiny = 1.5e-38f;
    out[i] = tiny * 0.5f;
  });
  for (float x : out) EXPECT_EQ(x, 0.0f);
  volatile float tiny = 1.5e-38f;
  EXPECT_NE(tiny * 0.5f, 0.0f);  // the caller's own mode is restored
}

}  // namespace perigee
