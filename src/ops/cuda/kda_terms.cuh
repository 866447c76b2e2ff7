// What the kernels of kda_chunk share: decays as products of the rows' own, sums over channels, and the
// product of w with rows of M. A lane has four neighbouring channels of a head.
#pragma once

#include "ops/cuda/kda_chunk.h"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/split_mma.cuh"
#include "ops/elementary.h"

namespace perigee::cuda {

constexpr int kGroup = 4, kGroups = kChunk / kGroup;  // rows of a chunk

__device__ inline float4 times(const float4& x, const float4& y) {
  return {x.x * y.x, x.y * y.y, x.z * y.z, x.w * y.w};
}
__device__ inline float4 plus(const float4& x, const float4& y) {
  return {x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w};
}
__device__ inline void add_product(float& sum, const float4& x, const float4& y) {
  sum = __fmaf_rn(x.x, y.x, sum);
  sum = __fmaf_rn(x.y, y.y, sum);
  sum = __fmaf_rn(x.z, y.z, sum);
  sum = __fmaf_rn(x.w, y.w, sum);
}
// sum += x·y, channel by channel.
__device__ inline void add_scaled(float4& sum, float x, const float4& y) {
  sum.x = __fmaf_rn(x, y.x, sum.x);
  sum.y = __fmaf_rn(x, y.y, sum.y);
  sum.z = __fmaf_rn(x, y.z, sum.z);
  sum.w = __fmaf_rn(x, y.w, sum.w);
}
__device__ inline float4 widen(uint2 four) {  // bf16
  return {__uint_as_float(four.x << 16), __uint_as_float(four.x & 0xFFFF0000u), __uint_as_float(four.y << 16),
          __uint_as_float(four.y & 0xFFFF0000u)};
}
__device__ inline float4 decay_of(const float4& g) {
  return {exp_decay(g.x), exp_decay(g.y), exp_decay(g.z), exp_decay(g.w)};
}
__device__ inline SplitB split_b(const float4& x) { return split_b(x.x, x.y, x.z, x.w); }

// e(l): e^{g} of row l of a group.
// From row 0 of the group to row t.
template <typename Factor>
__device__ float4 decay_up(const Factor& e, int t) {
  float4 x = {1.0f, 1.0f, 1.0f, 1.0f};
#pragma unroll
  for (int l = 1; l < kGroup; ++l) {
    if (l <= t) x = times(x, e(l));
  }
  return x;
}
// From row u of the group to its last.
template <typename Factor>
__device__ float4 decay_down(const Factor& e, int u) {
  float4 x = {1.0f, 1.0f, 1.0f, 1.0f};
#pragma unroll
  for (int l = kGroup - 1; l > 0; --l) {
    if (l > u) x = times(x, e(l));
  }
  return x;
}
// From row u to row t of one group, u < t.
template <typename Factor>
__device__ float4 decay_inside(const Factor& e, int t, int u) {
  if (u == 0) return decay_up(e, t);
  return t == kGroup - 1 ? decay_down(e, u) : e(2);
}
template <typename Factor>
__device__ float4 decay_whole(const Factor& e) {
  return times(e(0), decay_down(e, 0));
}

// whole(h): the decay over group h; first: e^{g} of the first row of group g.
// From the last row of group `before` to the first of group g.
template <typename Whole>
__device__ float4 decay_between(const float4& first, const Whole& whole, int g, int before) {
  float4 x = first;
#pragma unroll
  for (int h = kGroups - 2; h > 0; --h) {
    if (h < g && h > before) x = times(x, whole(h));
  }
  return x;
}
// From the start of the chunk to the first row of group g.
template <typename Whole>
__device__ float4 decay_since_start(const float4& first, const Whole& whole, int g) {
  if (g == 0) return first;
  float4 x = whole(0);
#pragma unroll
  for (int h = 1; h < kGroups - 1; ++h) {
    if (h < g) x = times(x, whole(h));
  }
  return times(x, first);
}
// From the last row of group g to the end of the chunk.
template <typename Whole>
__device__ float4 decay_until_end(const Whole& whole, int g) {
  float4 x = {1.0f, 1.0f, 1.0f, 1.0f};
#pragma unroll
  for (int h = kGroups - 1; h > 0; --h) {
    if (h > g) x = times(whole(h), x);
  }
  return x;
}

// Sums N values over the warp at once, with strides 16 … 1: lane l gets value l·N/32.
template <int N, int kStride = kWarp / 2>
__device__ float sum_each(float (&v)[N]) {
  if constexpr (N > 1) {
    constexpr int kHalf = N / 2;
    const bool upper = threadIdx.x & kStride;
    float half[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float keep = upper ? v[i + kHalf] : v[i], give = upper ? v[i] : v[i + kHalf];
      half[i] = keep + __shfl_xor_sync(kAllLanes, give, kStride);
    }
    if constexpr (kStride > 1) return sum_each<kHalf, kStride / 2>(half);
    return half[0];
  } else {
    v[0] += __shfl_xor_sync(kAllLanes, v[0], kStride);
    if constexpr (kStride > 1) return sum_each<1, kStride / 2>(v);
    return v[0];
  }
}

// o += Σ_j M'_ij w_j for the two rows i[e] of a tile's columns 2c + e. w: two tiles of C over the rows j of a
// chunk, `a` its split form. In the product rows after i meet zeros of M': what is not finite counts as zero
// there and as NaN from its own row on.
__device__ inline void add_rows(float (&o)[4], const float (&w)[2][4], const SplitA& a, const SplitB& M,
                                const int (&i)[2]) {
  constexpr float kMost = 3.402823466e38f;
  bool finite = true;
#pragma unroll
  for (int n = 0; n < 4; ++n) finite = finite && fabsf(w[0][n]) <= kMost && fabsf(w[1][n]) <= kMost;
  if (__all_sync(kAllLanes, finite)) {
    float inside[4] = {};
    add_split(inside, a, M);
#pragma unroll
    for (int n = 0; n < 4; ++n) o[n] += inside[n];
    return;
  }
  const int c = threadIdx.x % 4;
  float clean[2][4];
  uint32_t rows[2] = {};  // of the value columns r and r + 8: bit j where w_j is not finite
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const bool keeps = fabsf(w[h][n]) <= kMost;
      clean[h][n] = keeps ? w[h][n] : 0.0f;
      if (!keeps) rows[n / 2] |= 1u << sixteen(h, 2 * c + n % 2);
    }
  }
  float inside[4] = {};
  add_split(inside, split_a(clean[0], clean[1]), M);
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    rows[m] |= __shfl_xor_sync(kAllLanes, rows[m], 1);
    rows[m] |= __shfl_xor_sync(kAllLanes, rows[m], 2);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const bool reached = rows[m] & ((2u << i[e]) - 1);
      o[2 * m + e] = reached ? __uint_as_float(0x7FC00000u) : o[2 * m + e] + inside[2 * m + e];
    }
  }
}

}  // namespace perigee::cuda
