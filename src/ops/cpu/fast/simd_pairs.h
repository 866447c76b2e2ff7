// Operands of bf16 pair products, in the form that this instruction set multiplies: pairs as they lie in
// memory for vdpbf16ps, even and odd elements widened for AVX2. An operand used more than once is widened
// once.
#pragma once

#include "ops/cpu/fast/simd.h"

namespace perigee::cpu::PERIGEE_ISA {

PERIGEE_SIMD uint32_t load_pair(const bf16* p) {
  uint32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return pair;
}

#if defined(PERIGEE_ISA_AVX512) && !defined(PERIGEE_EMULATE_AVX512)

struct Operand {
  I32x16 pairs;
};
constexpr int kOperandFloats = 16;  // floats that a stored operand takes
PERIGEE_SIMD Operand operand(I32x16 pairs) { return {pairs}; }
PERIGEE_SIMD Operand load_operand(const float* p) { return {load_bits(p)}; }
PERIGEE_SIMD void store_operand(float* p, Operand x) { store_bits(p, x.pairs); }
// The first half of an operand; 8 floats further on, the second.
PERIGEE_SIMD void store_half_operand(float* p, __m256i pairs) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), pairs);
}
constexpr int kSplatFloats = 1;  // floats that one pair takes which all lanes will share
PERIGEE_SIMD void store_splat(float* p, uint32_t pair) { __builtin_memcpy(p, &pair, sizeof pair); }
PERIGEE_SIMD Operand load_splat(const float* p) {
  uint32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return {splat_bits(pair)};
}
PERIGEE_SIMD F32x16 pair_fma(Operand a, Operand b, F32x16 acc) { return pair_fma(a.pairs, b.pairs, acc); }

#else

struct Operand {
  F32x16 even, odd;
};
constexpr int kOperandFloats = 32;
PERIGEE_SIMD Operand operand(I32x16 pairs) { return {even_of(pairs), odd_of(pairs)}; }
PERIGEE_SIMD Operand load_operand(const float* p) { return {load(p), load(p + 16)}; }
PERIGEE_SIMD void store_operand(float* p, Operand x) {
  store(p, x.even);
  store(p + 16, x.odd);
}
PERIGEE_SIMD void store_half_operand(float* p, __m256i pairs) {
  const __m256i odd = _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_slli_epi32(pairs, 16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 16), odd);
}
constexpr int kSplatFloats = 2;
PERIGEE_SIMD void store_splat(float* p, uint32_t pair) {
  const uint32_t even = pair << 16, odd = pair & 0xFFFF0000u;
  __builtin_memcpy(p, &even, sizeof even);
  __builtin_memcpy(p + 1, &odd, sizeof odd);
}
PERIGEE_SIMD Operand load_splat(const float* p) { return {splat(p[0]), splat(p[1])}; }
PERIGEE_SIMD F32x16 pair_fma(Operand a, Operand b, F32x16 acc) {
  return fma(a.even, b.even, fma(a.odd, b.odd, acc));
}

#endif

}  // namespace perigee::cpu::PERIGEE_ISA
