// Sixteen fp32 lanes: what a kernel of ops/cpu/fast is written in, so that one source serves AVX2 (two
// registers) and AVX-512 with BF16 (one register and vdpbf16ps). Each kernel file is compiled once per
// instruction set with PERIGEE_ISA naming its namespace; whatever is included here must therefore be inlined
// always or live in that namespace, or the linker could pick the AVX-512 copy on a machine without it.
// Every operation gives the bits of the scalar code in arith.h and elementary.h with FTZ and DAZ set.
#pragma once

#ifdef PERIGEE_EMULATE_AVX512  // tests run the AVX-512 source on machines without it
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/fma.h>
#else
#include <immintrin.h>
#endif

#include <cstdint>

#include "formats/bf16.h"

#define PERIGEE_SIMD [[gnu::always_inline]] inline

namespace perigee::cpu::PERIGEE_ISA {

#ifdef PERIGEE_ISA_AVX512

struct F32x16 {
  __m512 v;
};
struct I32x16 {
  __m512i v;
};
struct Mask16 {
  __mmask16 v;
};

PERIGEE_SIMD F32x16 splat(float x) { return {_mm512_set1_ps(x)}; }
PERIGEE_SIMD F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
PERIGEE_SIMD void store(float* p, F32x16 x) { _mm512_storeu_ps(p, x.v); }
PERIGEE_SIMD F32x16 add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
PERIGEE_SIMD F32x16 sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
PERIGEE_SIMD F32x16 mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
PERIGEE_SIMD F32x16 div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
PERIGEE_SIMD F32x16 sqrt(F32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
PERIGEE_SIMD F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// std::max(a, b): a where the two compare equal or unordered.
PERIGEE_SIMD F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(b.v, a.v)}; }

PERIGEE_SIMD I32x16 bits(F32x16 a) { return {_mm512_castps_si512(a.v)}; }
PERIGEE_SIMD F32x16 from_bits(I32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
PERIGEE_SIMD I32x16 splat_bits(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
PERIGEE_SIMD I32x16 load_bits(const void* p) { return {_mm512_loadu_si512(p)}; }
PERIGEE_SIMD void store_bits(void* p, I32x16 x) { _mm512_storeu_si512(p, x.v); }
PERIGEE_SIMD I32x16 add(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
PERIGEE_SIMD I32x16 sub(I32x16 a, I32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
PERIGEE_SIMD I32x16 operator&(I32x16 a, I32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
PERIGEE_SIMD I32x16 operator|(I32x16 a, I32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
PERIGEE_SIMD I32x16 operator^(I32x16 a, I32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int n>
PERIGEE_SIMD I32x16 shift_left(I32x16 a) {
  return {_mm512_slli_epi32(a.v, n)};
}
template <int n>
PERIGEE_SIMD I32x16 shift_right(I32x16 a) {
  return {_mm512_srli_epi32(a.v, n)};
}

PERIGEE_SIMD Mask16 less(F32x16 a, F32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
PERIGEE_SIMD Mask16 unordered(F32x16 a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
// mask ? a : b
PERIGEE_SIMD F32x16 select(Mask16 mask, F32x16 a, F32x16 b) {
  return {_mm512_mask_blend_ps(mask.v, b.v, a.v)};
}

PERIGEE_SIMD F32x16 load_bf16(const bf16* p) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
#ifdef PERIGEE_EMULATE_AVX512  // SIMDe 0.7 does not know vpmovzxwd of 512 bits
  const __m256i low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(x));
  const __m256i high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1));
  const __m512i wide = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
#else
  const __m512i wide = _mm512_cvtepu16_epi32(x);
#endif
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
PERIGEE_SIMD void store_upper_halves(bf16* p, I32x16 x) {
  const __m512i upper = _mm512_srli_epi32(x.v, 16);
  const __m256i packed =
      _mm256_packus_epi32(_mm512_castsi512_si256(upper), _mm512_extracti64x4_epi64(upper, 1));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0b11011000));
}

PERIGEE_SIMD float tree16(F32x16 x) {
  const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x.v),
                                 _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x.v), 1)));
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}

#else

struct F32x16 {
  __m256 lo, hi;
};
struct I32x16 {
  __m256i lo, hi;
};
struct Mask16 {
  __m256 lo, hi;
};

PERIGEE_SIMD F32x16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
PERIGEE_SIMD F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
PERIGEE_SIMD void store(float* p, F32x16 x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
PERIGEE_SIMD F32x16 add(F32x16 a, F32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
PERIGEE_SIMD F32x16 sub(F32x16 a, F32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
PERIGEE_SIMD F32x16 mul(F32x16 a, F32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
PERIGEE_SIMD F32x16 div(F32x16 a, F32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
PERIGEE_SIMD F32x16 sqrt(F32x16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
PERIGEE_SIMD F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// std::max(a, b): a where the two compare equal or unordered.
PERIGEE_SIMD F32x16 max(F32x16 a, F32x16 b) { return {_mm256_max_ps(b.lo, a.lo), _mm256_max_ps(b.hi, a.hi)}; }

PERIGEE_SIMD I32x16 bits(F32x16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
PERIGEE_SIMD F32x16 from_bits(I32x16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
PERIGEE_SIMD I32x16 splat_bits(uint32_t x) {
  const __m256i v = _mm256_set1_epi32(static_cast<int>(x));
  return {v, v};
}
PERIGEE_SIMD I32x16 load_bits(const void* p) {
  const auto* v = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
PERIGEE_SIMD void store_bits(void* p, I32x16 x) {
  auto* v = static_cast<__m256i*>(p);
  _mm256_storeu_si256(v, x.lo);
  _mm256_storeu_si256(v + 1, x.hi);
}
PERIGEE_SIMD I32x16 add(I32x16 a, I32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
PERIGEE_SIMD I32x16 sub(I32x16 a, I32x16 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
PERIGEE_SIMD I32x16 operator&(I32x16 a, I32x16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
PERIGEE_SIMD I32x16 operator|(I32x16 a, I32x16 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
PERIGEE_SIMD I32x16 operator^(I32x16 a, I32x16 b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
template <int n>
PERIGEE_SIMD I32x16 shift_left(I32x16 a) {
  return {_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)};
}
template <int n>
PERIGEE_SIMD I32x16 shift_right(I32x16 a) {
  return {_mm256_srli_epi32(a.lo, n), _mm256_srli_epi32(a.hi, n)};
}

PERIGEE_SIMD Mask16 less(F32x16 a, F32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
PERIGEE_SIMD Mask16 unordered(F32x16 a) {
  return {_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)};
}
// mask ? a : b
PERIGEE_SIMD F32x16 select(Mask16 mask, F32x16 a, F32x16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, mask.lo), _mm256_blendv_ps(b.hi, a.hi, mask.hi)};
}

PERIGEE_SIMD F32x16 load_bf16(const bf16* p) {
  const auto* v = reinterpret_cast<const __m128i*>(p);
  const __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128(v));
  const __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128(v + 1));
  return from_bits({_mm256_slli_epi32(lo, 16), _mm256_slli_epi32(hi, 16)});
}
PERIGEE_SIMD void store_upper_halves(bf16* p, I32x16 x) {
  const __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(x.lo, 16), _mm256_srli_epi32(x.hi, 16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0b11011000));
}

PERIGEE_SIMD float tree16(F32x16 x) {
  const __m256 a = _mm256_add_ps(x.lo, x.hi);
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}

#endif

PERIGEE_SIMD F32x16 zero() { return splat(0.0f); }

// The two elements of each bf16 pair, widened.
PERIGEE_SIMD F32x16 even_of(I32x16 pairs) { return from_bits(shift_left<16>(pairs)); }
PERIGEE_SIMD F32x16 odd_of(I32x16 pairs) { return from_bits(pairs & splat_bits(0xFFFF0000u)); }
PERIGEE_SIMD I32x16 load_pairs(const bf16* p) { return load_bits(p); }

// acc + the products of 16 bf16 pairs, odd element first (arith.h): lane l of a and b holds elements 2l (low
// half) and 2l + 1.
PERIGEE_SIMD F32x16 pair_fma(I32x16 a, I32x16 b, F32x16 acc) {
#if defined(PERIGEE_ISA_AVX512) && !defined(PERIGEE_EMULATE_AVX512)
  return {_mm512_dpbf16_ps(acc.v, (__m512bh)a.v, (__m512bh)b.v)};
#else
  return fma(even_of(a), even_of(b), fma(odd_of(a), odd_of(b), acc));
#endif
}

// To bf16, nearest even; NaN stays NaN, as float_to_bf16.
PERIGEE_SIMD void store_bf16(bf16* p, F32x16 x) {
  const I32x16 u = bits(x);
  const I32x16 rounded = add(add(u, splat_bits(0x7FFF)), shift_right<16>(u) & splat_bits(1));
  const I32x16 quiet_nan = u | splat_bits(0x400000);
  store_upper_halves(p, bits(select(unordered(x), from_bits(quiet_nan), from_bits(rounded))));
}

}  // namespace perigee::cpu::PERIGEE_ISA
