// The nearest-value oracle of the codec tests: searches all codes of a format in double, knowing only what
// each code means.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace perigee {

// `values[c]` is the magnitude of code c, ascending; `sign_bit` marks negative codes. Ties go to the even
// code, and what is beyond the last value saturates. x is finite or infinite.
inline uint32_t nearest_code(const std::vector<double>& values, float x, uint32_t sign_bit) {
  const double magnitude = std::fabs(static_cast<double>(x));
  uint32_t best = 0;
  for (uint32_t c = 1; c < values.size(); ++c) {
    const double d = std::fabs(values[c] - magnitude), b = std::fabs(values[best] - magnitude);
    if (d < b || (d == b && c % 2 == 0)) best = c;
  }
  if (magnitude >= values.back()) best = static_cast<uint32_t>(values.size()) - 1;
  return best | (std::signbit(x) ? sign_bit : 0);
}

// Every bf16 value but NaN, every value of the format, every tie between neighbours, the fp32 numbers around
// them, and random fp32 bit patterns.
inline std::vector<float> interesting_floats(const std::vector<double>& values) {
  std::vector<float> out;
  const auto around = [&](double x) {
    const float f = static_cast<float>(x);
    for (float sign : {1.0f, -1.0f})
      for (float y : {f, std::nextafterf(f, INFINITY), std::nextafterf(f, 0.0f)}) out.push_back(sign * y);
  };
  for (size_t c = 0; c < values.size(); ++c) {
    around(values[c]);
    if (c > 0) around((values[c] + values[c - 1]) / 2);
  }
  for (uint32_t b = 0; b < 65536; ++b) out.push_back(std::bit_cast<float>(b << 16));
  std::mt19937_64 random(7);
  for (int i = 0; i < 100000; ++i) out.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  // Random numbers inside the format's range, where rounding happens.
  for (int i = 0; i < 100000; ++i)
    out.push_back(
        static_cast<float>(values.back() * 1.2 * (static_cast<double>(random() >> 11) * 0x1p-52 - 1.0)));
  std::erase_if(out, [](float x) { return std::isnan(x); });
  return out;
}

}  // namespace perigee
