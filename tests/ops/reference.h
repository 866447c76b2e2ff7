// fp64 arithmetic and seeded inputs for the tests of stages. A reference is written from the formulas of
// ops/ops.h in double and rounds only where the contract says that the stage rounds, so that tolerances can
// be tight.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "ops/cpu/backend.h"

namespace perigee::test {

using Doubles = std::vector<double>;

inline double rounded(double x) { return round_to_bf16(static_cast<float>(x)); }
inline Doubles rounded(Doubles x) {
  for (double& v : x) v = rounded(v);
  return x;
}

inline Doubles widen(const std::vector<bf16>& x) {
  Doubles out;
  for (bf16 v : x) out.push_back(bf16_to_float(v));
  return out;
}
inline Doubles widen(const std::vector<float>& x) { return {x.begin(), x.end()}; }
inline Doubles widen(const Doubles& x) { return x; }

// |got − want| / |want| in the Euclidean norm; infinite when `got` holds anything but finite values.
template <typename Got>
double relative_l2(const Got& got, const Doubles& want) {
  const Doubles g = widen(got);
  EXPECT_EQ(g.size(), want.size());
  double error = 0, norm = 0;
  for (size_t i = 0; i < std::min(g.size(), want.size()); ++i) {
    error += (g[i] - want[i]) * (g[i] - want[i]);
    norm += want[i] * want[i];
  }
  const double relative = std::sqrt(error / norm);
  return std::isfinite(relative) ? relative : INFINITY;
}

// Seeded normal inputs.
class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  float normal(float scale = 1.0f, float shift = 0.0f) { return shift + scale * normal_(engine_); }
  int below(int n) { return static_cast<int>(engine_() % static_cast<uint32_t>(n)); }
  std::vector<float> floats(int64_t count, float scale = 1.0f, float shift = 0.0f) {
    std::vector<float> out(count);
    for (float& x : out) x = normal(scale, shift);
    return out;
  }
  std::vector<bf16> bf16s(int64_t count, float scale = 1.0f, float shift = 0.0f) {
    std::vector<bf16> out(count);
    for (bf16& x : out) x = float_to_bf16(normal(scale, shift));
    return out;
  }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

// A bf16 matrix with its product in fp64. Values of scale in^-½ keep outputs of order one.
struct Matrix {
  std::vector<bf16> data;
  int out, in;
  Matrix(Random& random, int out, int in)
      : data(random.bf16s(int64_t{out} * in, 1.0f / std::sqrt(static_cast<float>(in)))), out(out), in(in) {}
  operator Linear() const { return {.weight = data.data(), .out = out, .in = in}; }

  // x[rows, stride] from column `begin` of the matrix on: y[rows, out].
  Doubles columns(const Doubles& x, int begin, int count) const {
    const int rows = static_cast<int>(x.size()) / in;
    Doubles y(int64_t{rows} * out);
    for (int r = 0; r < rows; ++r) {
      for (int o = 0; o < out; ++o) {
        double sum = 0;
        for (int i = begin; i < begin + count; ++i)
          sum += bf16_to_float(data[int64_t{o} * in + i]) * x[int64_t{r} * in + i];
        y[int64_t{r} * out + o] = sum;
      }
    }
    return y;
  }
  Doubles operator*(const Doubles& x) const { return columns(x, 0, in); }
  // The lane rule: [lanes, rows, out].
  Doubles lanes(const Doubles& x, int lanes) const {
    Doubles y;
    for (int l = 0; l < lanes; ++l) {
      const Doubles part = columns(x, l * (in / lanes), in / lanes);
      y.insert(y.end(), part.begin(), part.end());
    }
    return y;
  }
};

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }
inline double silu(double x) { return x * sigmoid(x); }

inline double mean_square(const double* x, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum / n;
}

// rms(x; w) of each row.
inline Doubles rms(const Doubles& x, const std::vector<float>& w, double eps) {
  const int n = static_cast<int>(w.size());
  Doubles y(x.size());
  for (size_t r = 0; r < x.size() / n; ++r) {
    const double scale = 1 / std::sqrt(mean_square(&x[r * n], n) + eps);
    for (int i = 0; i < n; ++i) y[r * n + i] = x[r * n + i] * scale * w[i];
  }
  return y;
}

// Tolerances. A stage that ends in fp32 differs from fp64 by the rounding of its sums. One whose reference
// rounds to bf16 at the same places differs by the few values that fall to the other side of a rounding
// boundary.
constexpr double kFp32 = 2e-6;
constexpr double kBf16SamePlaces = 3e-4;
constexpr double kBf16 = 4e-3;  // against an fp64 value that is not rounded at all

}  // namespace perigee::test
