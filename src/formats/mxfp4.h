// MXFP4: blocks of 32 e2m1 values with one e8m0 scale. Two values a byte, the earlier one in the low nibble,
// as checkpoints of the compressed-tensors kind `mxfp4-pack-quantized` lay them out.
#pragma once

#include <cstdint>

#include "formats/e2m1.h"
#include "formats/e8m0.h"

namespace perigee {

constexpr int kMxfp4Block = 32;

PERIGEE_HD inline uint32_t mxfp4_nibble(const uint8_t* packed, int i) {
  return packed[i / 2] >> (i % 2 * 4) & 0xFu;
}

// value i of a block: exact in fp32 while the scale is at least 2^-125.
PERIGEE_HD inline float mxfp4_value(const uint8_t* packed, uint8_t scale, int i) {
  return e2m1_to_float(mxfp4_nibble(packed, i)) * e8m0_to_float(scale);
}

// max |x| over `count` values: NaN when one of them is NaN.
PERIGEE_HD inline float max_magnitude(const float* x, int count) {
  uint32_t most = 0;
  for (int i = 0; i < count; ++i) {
    const uint32_t m =
        std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu;  // magnitudes order as their bits do, NaN last
    most = m > most ? m : most;
  }
  return std::bit_cast<float>(most);
}

// A block whose largest magnitude is below 2^-97 is stored as zero, so that no result depends on whether a
// device flushes subnormals.
PERIGEE_HD inline bool mxfp4_is_zero(float amax) { return std::bit_cast<uint32_t>(amax) < (30u << 23); }

// The smallest scale that lets no value saturate: 2^(scale−127) ≥ amax / 6. From the bits of amax = m · 2^e
// alone: e − 2 when m ≤ 1.5, else e − 1. NaN gives 0xFF, a zero block gives 0.
PERIGEE_HD inline uint8_t mxfp4_scale_up(float amax) {
  const uint32_t bits = std::bit_cast<uint32_t>(amax);
  if (bits > 0x7F800000u) return 0xFFu;
  if (mxfp4_is_zero(amax)) return 0;
  return static_cast<uint8_t>((bits >> 23) - 2 + ((bits & 0x7FFFFFu) > 0x400000u));
}

// The rule of the OCP specification, which trainers of MXFP4 weights use: 2^(floor(log2 amax) − 2); values
// beyond 6 scales saturate.
PERIGEE_HD inline uint8_t mxfp4_scale_ocp(float amax) {
  const uint32_t bits = std::bit_cast<uint32_t>(amax);
  if (bits > 0x7F800000u) return 0xFFu;
  return mxfp4_is_zero(amax) ? uint8_t{0} : static_cast<uint8_t>((bits >> 23) - 2);
}

// code i = float_to_e2m1(x[i] · 2^(127−scale)), exact in fp32 unless far too small to count; a zero block has
// codes ±0.
PERIGEE_HD inline void mxfp4_pack_block(const float* x, uint8_t scale, uint8_t* packed) {
  const float inverse = scale == 0 ? 0.0f : e8m0_reciprocal(scale);
  for (int i = 0; i < kMxfp4Block; i += 2) {
    const uint32_t low = float_to_e2m1(x[i] * inverse), high = float_to_e2m1(x[i + 1] * inverse);
    packed[i / 2] = static_cast<uint8_t>(low | high << 4);
  }
}

// 32 values → 16 bytes and the scale, by the rule that lets nothing saturate (index keys).
PERIGEE_HD inline uint8_t mxfp4_quantize_block(const float* x, uint8_t* packed) {
  const uint8_t scale = mxfp4_scale_up(max_magnitude(x, kMxfp4Block));
  mxfp4_pack_block(x, scale, packed);
  return scale;
}

// The same by the OCP rule (weights).
PERIGEE_HD inline uint8_t mxfp4_quantize_block_ocp(const float* x, uint8_t* packed) {
  const uint8_t scale = mxfp4_scale_ocp(max_magnitude(x, kMxfp4Block));
  mxfp4_pack_block(x, scale, packed);
  return scale;
}

}  // namespace perigee
