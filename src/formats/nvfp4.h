// NVFP4: blocks of 16 e2m1 values with one e4m3 scale, under one fp32 scale per tensor. Two values a byte,
// low nibble first.
#pragma once

#include <cstdint>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/mxfp4.h"

namespace perigee {

constexpr int kNvfp4Block = 16;

// value = e2m1 · (e4m3 · global): two fp32 products, the scales first.
PERIGEE_HD inline float nvfp4_value(const uint8_t* packed, uint8_t scale, float global, int i) {
  return e2m1_to_float(mxfp4_nibble(packed, i)) * (e4m3_to_float(scale) * global);
}

// In fp32: y = x · (1/global), one division for the tensor; scale = float_to_e4m3(amax(y) / 6): nearest,
// saturating at 448; code i = float_to_e2m1(y[i] / e4m3_to_float(scale)), or ±0 when the scale is 0 (amax =
// 0, or too small for e4m3).
PERIGEE_HD inline uint8_t nvfp4_quantize_block(const float* x, float inverse_global, uint8_t* packed) {
  float y[kNvfp4Block];
  for (int i = 0; i < kNvfp4Block; ++i) y[i] = x[i] * inverse_global;
  const uint8_t scale = float_to_e4m3(max_magnitude(y, kNvfp4Block) / 6.0f);
  const float divisor = e4m3_to_float(scale);
  for (int i = 0; i < kNvfp4Block; i += 2) {
    uint32_t low = 0, high = 0;
    if (scale != 0) {
      low = float_to_e2m1(y[i] / divisor);
      high = float_to_e2m1(y[i + 1] / divisor);
    }
    packed[i / 2] = static_cast<uint8_t>(low | high << 4);
  }
  return scale;
}

}  // namespace perigee
