// Operands of bf16 pair products, in the form that this instruction set multiplies: pairs as they lie in
// memory for vdpbf16ps, even and odd elements widened for AVX2. An operand used more than once is widened
// once.
#pragma once

#include "ops/cpu/fast/simd.h"

namespace perigee::cpu::PERIGEE_ISA {

PERIGEE_SIMD I32x16 splat_pair(const bf16* p) {
  uint32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return splat_bits(pair);
}

#if defined(PERIGEE_ISA_AVX512) && !defined(PERIGEE_EMULATE_AVX512)

struct Operand {
  I32x16 pairs;
};
constexpr int kOperandFloats = 16;  // floats that a stored operand takes
PERIGEE_SIMD Operand operand(I32x16 pairs) { return {pairs}; }
PERIGEE_SIMD Operand load_operand(const float* p) { return {load_bits(p)}; }
PERIGEE_SIMD void store_operand(float* p, Operand x) { store_bits(p, x.pairs); }
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
PERIGEE_SIMD F32x16 pair_fma(Operand a, Operand b, F32x16 acc) {
  return fma(a.even, b.even, fma(a.odd, b.odd, acc));
}

#endif

}  // namespace perigee::cpu::PERIGEE_ISA
