// bfloat16: the upper half of an fp32. Encoding rounds to nearest, ties to even; NaN stays NaN (quiet, sign
// kept).
#pragma once

#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace perigee {

using bf16 = uint16_t;  // the bits; arithmetic happens in fp32

PERIGEE_HD inline float bf16_to_float(bf16 x) { return std::bit_cast<float>(uint32_t{x} << 16); }

PERIGEE_HD inline bf16 float_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return static_cast<bf16>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet_nan : rounded);
}

PERIGEE_HD inline float round_to_bf16(float x) { return bf16_to_float(float_to_bf16(x)); }

}  // namespace perigee
