// e4m3fn: 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinity, 0x7F and 0xFF are NaN, the largest value
// is 448.
#pragma once

#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace perigee {

PERIGEE_HD inline float e4m3_to_float(uint8_t code) {
  const uint32_t sign = uint32_t{code} & 0x80u, rest = uint32_t{code} & 0x7Fu;
  if (rest == 0x7Fu) return std::bit_cast<float>(sign << 24 | 0x7FC00000u);
  if (rest < 8) {  // subnormal: a multiple of 2^-9, exact in fp32
    const float magnitude = static_cast<float>(rest) * 0x1p-9f;
    return std::bit_cast<float>(sign << 24 | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign << 24 | ((rest << 20) + (120u << 23)));
}

// Nearest, ties to even; beyond ±448 saturates (infinity too); NaN becomes 0x7F with its sign.
PERIGEE_HD inline uint8_t float_to_e4m3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint8_t>(sign | 0x7Fu);
  if (magnitude >= 0x43E80000u) return static_cast<uint8_t>(sign | 0x7Eu);  // 464 and more
  if (magnitude < 0x3C800000u) {  // below 2^-6: subnormals in steps of 2^-9
    // Adding 2^14 leaves an fp32 unit of 2^-9, so that the adder rounds; the low bits are the code.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000u));
  }
  const uint32_t rounded = magnitude + 0x7FFFFu + (magnitude >> 20 & 1u) - (120u << 23);
  const uint32_t code = rounded >> 20;
  return static_cast<uint8_t>(sign | (code > 0x7Eu ? 0x7Eu : code));
}

}  // namespace perigee
