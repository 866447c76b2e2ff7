// The elementary functions of every identity, on the host and on CUDA devices: fixed polynomials in fp32 with
// explicit fused operations and correctly rounded division and square root, never a system's library, so that
// every build gives the same bits. Branch-free, so that loops over them vectorise. Error bounds, over the
// normal results and with subnormals flushed as every CPU worker does (devices do not): exp 1
// ulp, rsqrt 1.5, log and log1p_unit 2, sigmoid, softplus and silu 2.5, tanh 3. Results that are subnormal,
// or pass through a subnormal on the way, are zero: exp below −87.33, softplus below −86.64, silu below
// −88.37.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"

namespace perigee::elementary {

// e^x. x > 88.37 gives +inf, x < −87.33 gives 0, NaN stays NaN. Taylor to degree 7 on |r| ≤ ln2/2.
PERIGEE_HD inline float exp(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5·2^23: adding it rounds to an integer in the low bits
  const float clamped = x < -87.33f ? -87.33f : (x > 88.37f ? 88.37f : x);
  const float shifted = std::fma(clamped, 1.44269504088896341f, kMagic);
  const float n = shifted - kMagic;
  float r = std::fma(n, -0.693359375f, clamped);
  r = std::fma(n, 2.12194440e-4f, r);
  float p = 1.0f / 5040.0f;
  p = std::fma(p, r, 1.0f / 720.0f);
  p = std::fma(p, r, 1.0f / 120.0f);
  p = std::fma(p, r, 1.0f / 24.0f);
  p = std::fma(p, r, 1.0f / 6.0f);
  p = std::fma(p, r, 0.5f);
  p = std::fma(p, r * r, r);
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kMagic) + 127u;
  const float scale = std::bit_cast<float>(exponent << 23);
  const float value = std::fma(p, scale, scale);
  const float bounded = x < -87.33f ? 0.0f : (x > 88.37f ? std::bit_cast<float>(0x7F800000u) : value);
  return x != x ? x : bounded;
}

// 2^n · 2^f for |f| ≤ ½, where n is the integer in the low bits of `shifted`: a polynomial of degree 6.
PERIGEE_HD inline float scaled_exp2(float shifted, float f) {
  float p = 1.54531629e-4f;
  p = std::fma(p, f, 1.33908634e-3f);
  p = std::fma(p, f, 9.61808256e-3f);
  p = std::fma(p, f, 5.55035711e-2f);
  p = std::fma(p, f, 2.40226508e-1f);
  p = std::fma(p, f, 6.93147188e-1f);
  p = std::fma(p, f, 1.0f);
  return p * std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + 0x3F800000u);
}

// e^x for x ≤ 0, where sums of decayed terms want a small error in absolute terms: within
// (1.3e-7 + 1.4e-8·|x|)·e^x. Below −87 it stays at e^−87; NaN stays NaN.
PERIGEE_HD inline float exp_decay(float x) {
  constexpr float kMagic = 12582912.0f, kLog2e = 1.44269504088896341f;
  const float clamped = x < -87.0f ? -87.0f : x;
  const float shifted = std::fma(clamped, kLog2e, kMagic);
  return scaled_exp2(shifted, std::fma(clamped, kLog2e, kMagic - shifted));
}

// 2^x for x ≤ 1, within 1 ulp. Below −125 it stays at 2^−125; NaN stays NaN.
PERIGEE_HD inline float exp2_decay(float x) {
  constexpr float kMagic = 12582912.0f;
#ifdef __CUDA_ARCH__
  float clamped;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(clamped) : "f"(x), "f"(-125.0f));
#else
  const float clamped = x < -125.0f ? -125.0f : x;
#endif
  const float shifted = clamped + kMagic;
  return scaled_exp2(shifted, clamped - (shifted - kMagic));
}

// ln x for x > 0 normal; 0 gives −inf, negative gives NaN. 2·atanh(s) with s = (m−1)/(m+1), m in [√½, √2).
PERIGEE_HD inline float log(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const int32_t e = static_cast<int32_t>(bits - 0x3F3504F3u) >> 23;
  const float m = std::bit_cast<float>(bits - (static_cast<uint32_t>(e) << 23));
  const float s = (m - 1.0f) / (m + 1.0f), s2 = s * s;
  float p = 2.0f / 11.0f;
  p = std::fma(p, s2, 2.0f / 9.0f);
  p = std::fma(p, s2, 2.0f / 7.0f);
  p = std::fma(p, s2, 2.0f / 5.0f);
  p = std::fma(p, s2, 2.0f / 3.0f);
  const float n = static_cast<float>(e);
  const float tail = std::fma(p * s2, s, n * -2.12194440e-4f);
  const float value = std::fma(n, 0.693359375f, std::fma(2.0f, s, tail));
  if (x == std::bit_cast<float>(0x7F800000u)) return x;
  if (x > 0.0f) return value;
  return x == 0.0f ? -std::bit_cast<float>(0x7F800000u) : std::bit_cast<float>(0x7FC00000u);
}

// ln(1 + y) for y in [0, 1]; 0 for y below 2^-125. 2·atanh(y / (2 + y)).
PERIGEE_HD inline float log1p_unit(float y) {
  const float s = y / (2.0f + y), s2 = s * s;
  float p = 2.0f / 17.0f;
  p = std::fma(p, s2, 2.0f / 15.0f);
  p = std::fma(p, s2, 2.0f / 13.0f);
  p = std::fma(p, s2, 2.0f / 11.0f);
  p = std::fma(p, s2, 2.0f / 9.0f);
  p = std::fma(p, s2, 2.0f / 7.0f);
  p = std::fma(p, s2, 2.0f / 5.0f);
  p = std::fma(p, s2, 2.0f / 3.0f);
  return std::fma(p * s2, s, 2.0f * s);
}

PERIGEE_HD inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

// ln(1 + e^x) = max(x, 0) + ln(1 + e^−|x|).
PERIGEE_HD inline float softplus(float x) { return (x > 0.0f ? x : 0.0f) + log1p_unit(exp(-std::fabs(x))); }

PERIGEE_HD inline float silu(float x) { return x / (1.0f + exp(-x)); }

// Odd Taylor series to degree 15 below 0.5, 1 − 2e/(1 + e) with e = exp(−2|x|) above.
PERIGEE_HD inline float tanh(float x) {
  const float a = std::fabs(x), x2 = x * x;
  float p = -929569.0f / 638512875.0f;
  p = std::fma(p, x2, 21844.0f / 6081075.0f);
  p = std::fma(p, x2, -1382.0f / 155925.0f);
  p = std::fma(p, x2, 62.0f / 2835.0f);
  p = std::fma(p, x2, -17.0f / 315.0f);
  p = std::fma(p, x2, 2.0f / 15.0f);
  p = std::fma(p, x2, -1.0f / 3.0f);
  const float small = std::fma(p * x2, x, x);
  const float e = exp(-2.0f * a);
  const float large = std::copysign(1.0f - 2.0f * e / (1.0f + e), x);
  return x != x ? x : (a < 0.5f ? small : large);
}

PERIGEE_HD inline float rsqrt(float x) { return 1.0f / std::sqrt(x); }

}  // namespace perigee::elementary

namespace perigee::cpu {
using namespace elementary;
}
namespace perigee::cuda {
using namespace elementary;
}
