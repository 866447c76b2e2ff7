// Products of fp32 values on bf16 matrix instructions (m16n8k16): a value x is taken as hi + lo, both bf16,
// and a product as hi·hi plus the two mixed terms, which leaves a relative error of about 2^-17 a term. An
// element of the result is a chain over K in ascending order and depends on its row of A and its column of B
// alone.
//
// Where a thread's elements lie, with r = lane / 4 and c = lane % 4:
//   A[16 m, 16 k]: pairs (r, 2c), (r + 8, 2c), (r, 2c + 8), (r + 8, 2c + 8), each with the next k
//   B[16 k, 8 n]: pairs (2c, r), (2c + 8, r), each with the next k
//   C[16 m, 8 n]: (r, 2c), (r, 2c + 1), (r + 8, 2c), (r + 8, 2c + 1)
// so two neighbouring tiles of C are an A whose k runs over their 16 columns.
#pragma once

#include <cstdint>

#include "ops/cuda/mma.cuh"
#include "ops/cuda/split_operand.h"

namespace perigee::cuda {

struct SplitPair {
  uint32_t hi, lo;  // bf16 pairs, the earlier element in the low half
};

__device__ inline SplitPair split(float x0, float x1) {
  const uint32_t hi = bf16_pair(x0, x1);
  return {hi, bf16_pair(x0 - __uint_as_float(hi << 16), x1 - __uint_as_float(hi & 0xFFFF0000u))};
}

struct SplitA {
  uint32_t hi[4], lo[4];
};

__device__ inline SplitA split_a(const float (&left)[4], const float (&right)[4]) {
  const SplitPair p[4] = {split(left[0], left[1]), split(left[2], left[3]), split(right[0], right[1]),
                          split(right[2], right[3])};
  SplitA a;
#pragma unroll
  for (int i = 0; i < 4; ++i) a.hi[i] = p[i].hi, a.lo[i] = p[i].lo;
  return a;
}

__device__ inline SplitB split_b(float k0, float k1, float k8, float k9) {
  const SplitPair near = split(k0, k1), far = split(k8, k9);
  return {{near.hi, far.hi}, {near.lo, far.lo}};
}

// The large terms and the mixed ones are chains of their own: half the latency.
struct SplitSum {
  float large[4] = {}, mixed[4] = {};
  __device__ void add(const SplitA& a, const SplitB& b) {
    mma(large, a.hi, b.hi);
    mma(mixed, a.lo, b.hi);
    mma(mixed, a.hi, b.lo);
  }
  __device__ float operator[](int i) const { return large[i] + mixed[i]; }
};

}  // namespace perigee::cuda
