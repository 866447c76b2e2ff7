// Index vectors as their cache formats round them, in fp64 and from the formats' definitions alone.
#pragma once

#include "formats/cache_records.h"
#include "ops/reference.h"

namespace perigee::test {

// To the nearest multiple of `step`, ties to even.
inline double to_multiple(double x, double step) { return std::nearbyint(x / step) * step; }

// e4m3: three mantissa bits, smallest normal exponent −6, largest value 448.
inline double to_e4m3(double x) {
  if (x == 0) return 0;
  const int exponent = std::max(std::ilogb(x), -6);
  return std::clamp(to_multiple(x, std::ldexp(1.0, exponent - 3)), -448.0, 448.0);
}

// e2m1: 0, ½, 1, 1½, 2, 3, 4, 6.
inline double to_e2m1(double x) {
  const double a = std::fabs(x);
  return std::clamp(to_multiple(x, a < 2 ? 0.5 : a < 4 ? 1.0 : 2.0), -6.0, 6.0);
}

inline double magnitude(const double* x, int n) {
  double most = 0;
  for (int i = 0; i < n; ++i) most = std::max(most, std::fabs(x[i]));
  return most;
}

// The 128 values that a reader of the stored vector sees, scale included.
inline Doubles quantised(IndexKeyFormat format, const double* x) {
  Doubles out(128);
  const int block = format == IndexKeyFormat::kMxfp4 ? 32 : 128;
  for (int begin = 0; begin < 128; begin += block) {
    const double amax = magnitude(x + begin, block);
    double scale = amax / 448;
    if (format == IndexKeyFormat::kMxfp4) {  // the smallest power of two that lets nothing saturate
      scale = std::exp2(std::ceil(std::log2(amax / 6)));
    }
    for (int i = begin; i < begin + block; ++i) {
      out[i] = format == IndexKeyFormat::kBf16  ? rounded(x[i])
               : format == IndexKeyFormat::kFp8 ? to_e4m3(x[i] / scale) * scale
                                                : to_e2m1(x[i] / scale) * scale;
    }
  }
  return out;
}

}  // namespace perigee::test
