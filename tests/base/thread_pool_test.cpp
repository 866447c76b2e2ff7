// The pool runs every index once, rethrows, and computes with subnormals flushed.
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

namespace perigee {

TEST(ThreadPool, RunsEveryIndexOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int64_t count : {0, 1, 7, 1000}) {
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
