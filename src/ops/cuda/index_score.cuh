// What the two kernels that score index keys share: where heads lie, and the term of a head.
#pragma once

#include "ops/cuda/reduce.cuh"

namespace perigee::cuda {

constexpr int kHeadGroup = 32;

// Where head h of a group lies among its columns: column c of the j-th product of 8 columns is head 8·(c/2) +
// 2j + c%2, so that thread t of four gets heads 8t … 8t + 7 in ascending j.
__device__ constexpr int column_of_head(int h) { return h % 8 / 2 * 8 + h / 8 * 2 + h % 2; }

// max(x, 0), NaN staying NaN.
__device__ inline float relu(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

// Four sums of each of four neighbouring threads, added over them as (0 + 1) + (2 + 3); thread t gets the
// t-th.
__device__ inline float add_over_four(const float (&x)[4]) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  float a = odd ? x[1] : x[0], b = odd ? x[3] : x[2];
  a += __shfl_xor_sync(kAllLanes, odd ? x[0] : x[1], 1);
  b += __shfl_xor_sync(kAllLanes, odd ? x[2] : x[3], 1);
  return (upper ? b : a) + __shfl_xor_sync(kAllLanes, upper ? a : b, 2);
}

}  // namespace perigee::cuda
