// e2m1 (fp4): 1 sign, 2 exponent, 1 mantissa bit; the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6. Neither infinity
// nor NaN.
#pragma once

#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace perigee {

// `code` is a nibble; bits above the fourth are not looked at.
PERIGEE_HD inline float e2m1_to_float(uint32_t code) {
  const uint32_t sign = (code & 8u) << 28, rest = code & 7u;
  const uint32_t magnitude = rest < 2 ? rest * 0x3F000000u : (rest << 22) + (126u << 23);
  return std::bit_cast<float>(sign | magnitude);
}

// Nearest, ties to even; beyond ±6 saturates (infinity too). NaN becomes +6 or −6 by its sign: the format has
// none.
PERIGEE_HD inline uint8_t float_to_e2m1(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = bits >> 28 & 8u;
  const uint32_t m = bits & 0x7FFFFFFFu;
  // Halfway points between neighbours; a tie goes to the even code, so odd codes own neither end of their
  // interval.
  const uint32_t code = (m > 0x3E800000u)     // 0.25
                        + (m >= 0x3F400000u)  // 0.75
                        + (m > 0x3FA00000u)   // 1.25
                        + (m >= 0x3FE00000u)  // 1.75
                        + (m > 0x40200000u)   // 2.5
                        + (m >= 0x40600000u)  // 3.5
                        + (m > 0x40A00000u);  // 5
  return static_cast<uint8_t>(sign | code);
}

}  // namespace perigee
