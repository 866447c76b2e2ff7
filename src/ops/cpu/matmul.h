// y = W x over many rows, on the thread pool: every output element is one dot(), so its bits depend on its
// row alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/thread_pool.h"
#include "ops/break_rule.h"
#include "ops/cpu/arith.h"
#include "ops/weights.h"

namespace perigee::cpu {

// A product sum that breaks the row rule (rows of a larger batch are summed in another order) or the segment
// rule (K is cut in two when one row stands alone), for the tests that must notice.
inline float broken_dot(const bf16* x, const bf16* y, int n, int rows) {
  const int half = n / 64 * 32;
  const bool cut = (rule_broken(Rule::kRow) && rows > 1) || (rule_broken(Rule::kSegment) && rows == 1);
  return cut ? dot(x + half, y + half, n - half) + dot(x, y, half) : dot(x, y, n);
}

// The product sums of weight rows [o, o + count) with x, count ≤ 4, into out[count].
inline void dot_block(const bf16* x, const bf16* w, int64_t stride, int n, int count, int rows, float* out) {
  if (rule_broken(Rule::kRow) || rule_broken(Rule::kSegment)) {
    for (int i = 0; i < count; ++i) out[i] = broken_dot(x, w + i * stride, n, rows);
  } else if (count == 4) {
    dot_rows<4>(x, w, stride, n, out);
  } else {
    for (int i = 0; i < count; ++i) dot_rows<1>(x, w + i * stride, 0, n, out + i);
  }
}

// sink(row, output, sum) for every row r < rows and output o < w.out, with sum = Σ_k w[o, k0 + k]·x[r, k], k
// < n. x has row stride x_stride and starts at column k0 of w.
template <typename Sink>
void matmul_columns(ThreadPool& pool, const Linear& w, int k0, int n, const bf16* x, int64_t x_stride,
                    int rows, const Sink& sink) {
  constexpr int kTask = 16;  // outputs a task computes: their weights stay in cache over the rows
  pool.run((w.out + kTask - 1) / kTask, [&](int64_t task) {
    const int begin = static_cast<int>(task) * kTask, end = std::min(w.out, begin + kTask);
    for (int r = 0; r < rows; ++r) {
      for (int o = begin; o < end; o += 4) {
        float out[4];
        const int count = std::min(4, end - o);
        dot_block(x + r * x_stride, w.weight + int64_t{o} * w.in + k0, w.in, n, count, rows, out);
        for (int i = 0; i < count; ++i) sink(r, o + i, out[i]);
      }
    }
  });
}

template <typename Sink>
void matmul(ThreadPool& pool, const Linear& w, const bf16* x, int rows, const Sink& sink) {
  matmul_columns(pool, w, 0, w.in, x, w.in, rows, sink);
}

// The common case: → bf16.
inline void matmul_bf16(ThreadPool& pool, const Linear& w, const bf16* x, int rows, bf16* out) {
  matmul(pool, w, x, rows, [&](int r, int o, float y) { out[int64_t{r} * w.out + o] = float_to_bf16(y); });
}

// The lane rule for a product whose input columns are cut: partial[lane, row, out] over the lane's block of
// columns.
inline void matmul_lanes(ThreadPool& pool, const Linear& w, const bf16* x, int rows, int lanes,
                         float* partial) {
  const int block = w.in / lanes;
  for (int lane = 0; lane < lanes; ++lane) {
    float* out = partial + int64_t{lane} * rows * w.out;
    matmul_columns(pool, w, lane * block, block, x + lane * block, w.in, rows,
                   [&](int r, int o, float y) { out[int64_t{r} * w.out + o] = y; });
  }
}

}  // namespace perigee::cpu
