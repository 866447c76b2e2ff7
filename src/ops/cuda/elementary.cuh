// The elementary functions of the CUDA identities (sm_90a, …): fixed polynomials in fp32 with explicit fused
// operations and correctly rounded division and square root, never the toolkit's, so that every compiler
// gives the same bits. On equal inputs they return what ops/cpu/elementary.h returns without flushing
// subnormals.
#pragma once

#include <cstdint>

namespace perigee::cuda {

// e^x. x ≥ 88.37 gives +inf, x < −87.33 gives 0, NaN stays NaN. Taylor to degree 7 on |r| ≤ ln2/2.
__device__ inline float exp(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5·2^23: adding it rounds to an integer in the low bits
  const float clamped = x < -87.33f ? -87.33f : (x > 88.37f ? 88.37f : x);
  const float shifted = __fmaf_rn(clamped, 1.44269504088896341f, kMagic);
  const float n = __fsub_rn(shifted, kMagic);
  float r = __fmaf_rn(n, -0.693359375f, clamped);
  r = __fmaf_rn(n, 2.12194440e-4f, r);
  float p = 1.0f / 5040.0f;
  p = __fmaf_rn(p, r, 1.0f / 720.0f);
  p = __fmaf_rn(p, r, 1.0f / 120.0f);
  p = __fmaf_rn(p, r, 1.0f / 24.0f);
  p = __fmaf_rn(p, r, 1.0f / 6.0f);
  p = __fmaf_rn(p, r, 0.5f);
  p = __fmaf_rn(p, __fmul_rn(r, r), r);
  const uint32_t exponent = __float_as_uint(shifted) - __float_as_uint(kMagic) + 127u;
  const float scale = __uint_as_float(exponent << 23);
  const float value = __fmaf_rn(p, scale, scale);
  const float bounded = x < -87.33f ? 0.0f : (x > 88.37f ? __uint_as_float(0x7F800000u) : value);
  return x != x ? x : bounded;
}

__device__ inline float rsqrt(float x) { return __fdiv_rn(1.0f, __fsqrt_rn(x)); }

}  // namespace perigee::cuda
