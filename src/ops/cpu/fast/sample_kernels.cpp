// Passes over the logits of one row.
#include "ops/cpu/fast/sequence_functions.h"
#include "ops/cpu/fast/simd_elementary.h"

namespace perigee::cpu::PERIGEE_ISA {

float largest(const float* z, int64_t count) {
  F32x16 top = splat(z[0]);
  for (int64_t i = 0; i < count; i += 16) top = max(top, load(z + i));
  alignas(64) float lane[16];
  store(lane, top);
  float best = lane[0];
  for (int l = 1; l < 16; ++l) best = best < lane[l] ? lane[l] : best;
  return best;
}

void add_exp(const float* z, int64_t count, float top, float* sum) {
  F32x16 acc = load(sum);
  for (int64_t i = 0; i < count; i += 16) acc = add(acc, exp(sub(load(z + i), splat(top))));
  store(sum, acc);
}

void add_gumbel(const uint32_t* words, int64_t count, float norm, float* z) {
  // The 23 upper bits of a word as a float, exact: as the low bits of 2^23, less 2^23.
  const F32x16 large = splat(0x1p23f), half = splat(0.5f), unit = splat(0x1p-23f);
  for (int64_t i = 0; i < count; i += 16) {
    const F32x16 integer = sub(from_bits(shift_right<9>(load_bits(words + i)) | bits(large)), large);
    const F32x16 uniform = mul(add(integer, half), unit);
    store(z + i, sub(sub(load(z + i), splat(norm)), log(negate(log(uniform)))));
  }
}

}  // namespace perigee::cpu::PERIGEE_ISA
