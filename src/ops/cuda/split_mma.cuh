// Products of fp32 values on bf16 matrix instructions (m16n8k16): a value x is taken as hi + lo, both bf16,
// and a product as hi·hi plus the two mixed terms, which leaves a relative error of about 2^-17 a term. An
// element of the result is a chain over K in ascending order and depends on its row of A and its column of B
// alone.
//
// Sixteen values of K lie so that each thread of a quad has four neighbours. With r = lane / 4, c = lane % 4
// a thread holds
//   A[16 m, 16 k]: m = r and r + 8, k = 4c … 4c + 3
//   B[16 k, 8 n]: n = r, k = 4c … 4c + 3
//   C[16 m, 8 n]: m = r and r + 8, n = 2c and 2c + 1
// and two tiles of C, with column n of tile h standing for sixteen(h, n), are an A without any exchange.
#pragma once

#include <cstdint>

#include "ops/cuda/mma.cuh"
#include "ops/cuda/split_operand.h"

namespace perigee::cuda {

// Which of sixteen column n of tile h is, and where one of sixteen lies.
__device__ constexpr int sixteen(int h, int n) { return n / 2 * 4 + h * 2 + n % 2; }
__device__ constexpr int tile_of(int i) { return i / 2 % 2; }
__device__ constexpr int column_of(int i) { return i / 4 * 2 + i % 2; }

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

// From two tiles of C.
__device__ inline SplitA split_a(const float (&tile0)[4], const float (&tile1)[4]) {
  const SplitPair p[4] = {split(tile0[0], tile0[1]), split(tile0[2], tile0[3]), split(tile1[0], tile1[1]),
                          split(tile1[2], tile1[3])};
  SplitA a;
#pragma unroll
  for (int i = 0; i < 4; ++i) a.hi[i] = p[i].hi, a.lo[i] = p[i].lo;
  return a;
}

// A thread's four values of K.
__device__ inline SplitB split_b(float k0, float k1, float k2, float k3) {
  const SplitPair near = split(k0, k1), far = split(k2, k3);
  return {{near.hi, far.hi}, {near.lo, far.lo}};
}

// The large terms and the mixed ones are chains of their own: less latency.
struct SplitSum {
  float large[4] = {}, mixed[4] = {};
  __device__ void add(const SplitA& a, const SplitB& b) {
    mma(large, a.hi, b.hi);
    mma(mixed, a.lo, b.hi);
    mma(mixed, a.hi, b.lo);
  }
  __device__ float operator[](int i) const { return large[i] + mixed[i]; }
};

// One chain, the mixed terms first: fewer instructions where several independent chains hide the latency.
__device__ inline void add_split(float (&c)[4], const SplitA& a, const SplitB& b) {
  mma(c, a.lo, b.hi);
  mma(c, a.hi, b.lo);
  mma(c, a.hi, b.hi);
}

}  // namespace perigee::cuda
