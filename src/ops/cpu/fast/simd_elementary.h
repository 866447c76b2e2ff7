// The elementary functions of elementary.h on sixteen lanes: the same operations in the same order, so the
// same bits.
#pragma once

#include "ops/cpu/fast/simd.h"

namespace perigee::cpu::PERIGEE_ISA {

PERIGEE_SIMD F32x16 exp(F32x16 x) {
  const F32x16 low = splat(-87.33f), high = splat(88.37f), magic = splat(12582912.0f);
  const Mask16 below = less(x, low), above = less(high, x);
  const F32x16 clamped = select(below, low, select(above, high, x));
  const F32x16 shifted = fma(clamped, splat(1.44269504088896341f), magic);
  const F32x16 n = sub(shifted, magic);
  F32x16 r = fma(n, splat(-0.693359375f), clamped);
  r = fma(n, splat(2.12194440e-4f), r);
  F32x16 p = splat(1.0f / 5040.0f);
  p = fma(p, r, splat(1.0f / 720.0f));
  p = fma(p, r, splat(1.0f / 120.0f));
  p = fma(p, r, splat(1.0f / 24.0f));
  p = fma(p, r, splat(1.0f / 6.0f));
  p = fma(p, r, splat(0.5f));
  p = fma(p, mul(r, r), r);
  const I32x16 exponent = add(sub(bits(shifted), bits(magic)), splat_bits(127));
  const F32x16 scale = from_bits(shift_left<23>(exponent));
  const F32x16 value = fma(p, scale, scale);
  const F32x16 bounded = select(below, zero(), select(above, from_bits(splat_bits(0x7F800000u)), value));
  return select(unordered(x), x, bounded);
}

// ln x as log() there: 0 gives −inf, negative gives NaN.
PERIGEE_SIMD F32x16 log(F32x16 x) {
  const F32x16 infinity = from_bits(splat_bits(0x7F800000u)), one = splat(1.0f);
  const F32x16 magic = splat(12582912.0f);
  // The exponent by an arithmetic shift, and as a float by way of the low bits of a large one.
  const I32x16 e = sub(shift_right<23>(sub(bits(x), splat_bits(0x3F3504F3u)) ^ splat_bits(0x80000000u)),
                       splat_bits(0x80000000u >> 23));
  const F32x16 n = sub(from_bits(add(bits(magic), e)), magic);
  const F32x16 m = from_bits(sub(bits(x), shift_left<23>(e)));
  const F32x16 s = div(sub(m, one), add(m, one)), s2 = mul(s, s);
  F32x16 p = splat(2.0f / 11.0f);
  p = fma(p, s2, splat(2.0f / 9.0f));
  p = fma(p, s2, splat(2.0f / 7.0f));
  p = fma(p, s2, splat(2.0f / 5.0f));
  p = fma(p, s2, splat(2.0f / 3.0f));
  const F32x16 tail = fma(mul(p, s2), s, mul(n, splat(-2.12194440e-4f)));
  const F32x16 value = fma(n, splat(0.693359375f), fma(splat(2.0f), s, tail));
  const F32x16 nan = from_bits(splat_bits(0x7FC00000u)), minus_infinity = from_bits(splat_bits(0xFF800000u));
  const F32x16 not_positive = select(less(x, zero()), nan, select(unordered(x), nan, minus_infinity));
  return select(less(zero(), x), select(less(x, infinity), value, x), not_positive);
}

PERIGEE_SIMD F32x16 negate(F32x16 x) { return from_bits(bits(x) ^ splat_bits(0x80000000u)); }
PERIGEE_SIMD F32x16 magnitude(F32x16 x) { return from_bits(bits(x) & splat_bits(0x7FFFFFFFu)); }

PERIGEE_SIMD F32x16 sigmoid(F32x16 x) { return div(splat(1.0f), add(splat(1.0f), exp(negate(x)))); }

PERIGEE_SIMD F32x16 silu(F32x16 x) { return div(x, add(splat(1.0f), exp(negate(x)))); }

// ln(1 + y) for y in [0, 1].
PERIGEE_SIMD F32x16 log1p_unit(F32x16 y) {
  const F32x16 s = div(y, add(splat(2.0f), y)), s2 = mul(s, s);
  F32x16 p = splat(2.0f / 17.0f);
  p = fma(p, s2, splat(2.0f / 15.0f));
  p = fma(p, s2, splat(2.0f / 13.0f));
  p = fma(p, s2, splat(2.0f / 11.0f));
  p = fma(p, s2, splat(2.0f / 9.0f));
  p = fma(p, s2, splat(2.0f / 7.0f));
  p = fma(p, s2, splat(2.0f / 5.0f));
  p = fma(p, s2, splat(2.0f / 3.0f));
  return fma(mul(p, s2), s, mul(splat(2.0f), s));
}

PERIGEE_SIMD F32x16 softplus(F32x16 x) {
  return add(select(less(zero(), x), x, zero()), log1p_unit(exp(negate(magnitude(x)))));
}

PERIGEE_SIMD F32x16 tanh(F32x16 x) {
  const F32x16 a = magnitude(x), x2 = mul(x, x);
  F32x16 p = splat(-929569.0f / 638512875.0f);
  p = fma(p, x2, splat(21844.0f / 6081075.0f));
  p = fma(p, x2, splat(-1382.0f / 155925.0f));
  p = fma(p, x2, splat(62.0f / 2835.0f));
  p = fma(p, x2, splat(-17.0f / 315.0f));
  p = fma(p, x2, splat(2.0f / 15.0f));
  p = fma(p, x2, splat(-1.0f / 3.0f));
  const F32x16 small = fma(mul(p, x2), x, x);
  const F32x16 e = exp(mul(splat(-2.0f), a));
  const F32x16 ratio = sub(splat(1.0f), div(mul(splat(2.0f), e), add(splat(1.0f), e)));
  const F32x16 large =
      from_bits((bits(ratio) & splat_bits(0x7FFFFFFFu)) | (bits(x) & splat_bits(0x80000000u)));
  return select(unordered(x), x, select(less(a, splat(0.5f)), small, large));
}

PERIGEE_SIMD F32x16 rsqrt(F32x16 x) { return div(splat(1.0f), sqrt(x)); }

}  // namespace perigee::cpu::PERIGEE_ISA
