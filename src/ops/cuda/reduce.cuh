// Sums over a warp or a block in a fixed order: what they give depends on the values and on the number of
// threads alone. fp32.
#pragma once

#include <cstdint>

namespace perigee::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// Strides 16 … 1; every thread gets the sum.
__device__ inline float warp_sum(float x) {
  for (int stride = kWarp / 2; stride > 0; stride /= 2) x += __shfl_xor_sync(kAllLanes, x, stride);
  return x;
}

__device__ inline float warp_max(float x) {
  for (int stride = kWarp / 2; stride > 0; stride /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, stride));
  return x;
}

// Over a block of whole warps: each warp's sum, then the warps' in ascending order; every thread gets it.
// `of_warp` is shared memory of one float a warp, free again when the next __syncthreads() has passed.
__device__ inline float block_sum(float x, float* of_warp) {
  x = warp_sum(x);
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = x;
  __syncthreads();
  float total = 0.0f;
  for (unsigned w = 0; w < blockDim.x / kWarp; ++w) total += of_warp[w];
  return total;
}

}  // namespace perigee::cuda
