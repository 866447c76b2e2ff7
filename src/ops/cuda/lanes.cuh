// The lane rule's tree, in registers.
#pragma once

#include "ops/plan.h"

namespace perigee::cuda {

// first[0] + first[stride] + … by the tree with strides lanes/2 … 1. `lanes` is a power of two.
__device__ inline float reduce_lanes(const float* first, int64_t stride, int lanes) {
  if (lanes == 1) return first[0];
  float lane[kMaxLanes];
#pragma unroll
  for (int l = 0; l < kMaxLanes; ++l) lane[l] = l < lanes ? first[l * stride] : 0.0f;
#pragma unroll
  for (int step = kMaxLanes / 2; step > 0; step /= 2) {
    if (step >= lanes) continue;
#pragma unroll
    for (int l = 0; l < step; ++l) lane[l] += lane[l + step];
  }
  return lane[0];
}

}  // namespace perigee::cuda
