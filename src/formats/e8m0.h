// e8m0: a power of two, 2^(code − 127), as the scale of a block; 0xFF is NaN. There is no zero.
#pragma once

#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace perigee {

PERIGEE_HD inline float e8m0_to_float(uint8_t code) {
  if (code == 0xFFu) return std::bit_cast<float>(0x7FC00000u);
  if (code == 0) return std::bit_cast<float>(0x00400000u);  // 2^-127 is subnormal
  return std::bit_cast<float>(uint32_t{code} << 23);
}

// The smallest power of two that is not below x, from its bits alone. x ≤ 2^-127 (zero and negative values
// too) gives 0, more than 2^127 gives 254, NaN gives 0xFF.
PERIGEE_HD inline uint8_t e8m0_round_up(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0xFFu;
  if (bits >> 31) return 0;
  const uint32_t exponent = bits >> 23, mantissa = bits & 0x7FFFFFu;
  // A subnormal between 2^-127 and 2^-126 has exponent 0 and rounds up to code 1.
  const uint32_t above = exponent == 0 ? mantissa > 0x400000u : mantissa != 0;
  const uint32_t code = exponent + above;
  return static_cast<uint8_t>(code > 254u ? 254u : code);
}

// 1 / e8m0_to_float(code), exact; code 254 gives 2^-127.
PERIGEE_HD inline float e8m0_reciprocal(uint8_t code) {
  return code == 0xFFu ? e8m0_to_float(code) : e8m0_to_float(static_cast<uint8_t>(254u - code));
}

}  // namespace perigee
