// The sums of the identity x86-bf16-v1. A bf16 product sum keeps 16 fp32 partials; partial l takes the
// element pairs (2l, 2l+1) of every block of 32, odd element first, each a fused multiply-add: what vdpbf16ps
// does. The partials are added by a fixed tree with strides 8, 4, 2, 1. Lengths that are no multiple of 32
// count as padded with zeros.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "formats/bf16.h"

namespace perigee::cpu {

inline float tree16(const float* acc) {
  float a[8], b[4];
  for (int i = 0; i < 8; ++i) a[i] = acc[i] + acc[i + 8];
  for (int i = 0; i < 4; ++i) b[i] = a[i] + a[i + 4];
  return (b[0] + b[2]) + (b[1] + b[3]);
}

inline uint32_t load_pair(const bf16* p) {
  uint32_t pair;
  std::memcpy(&pair, p, sizeof pair);
  return pair;
}
inline float even_of(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
inline float odd_of(uint32_t pair) { return std::bit_cast<float>(pair & 0xFFFF0000u); }

// out[r] = Σ_k x[k]·y_r[k] for N rows y_r = y + r·stride at once; each row's sum is the same whatever N is.
template <int N>
void dot_rows(const bf16* x, const bf16* y, int64_t stride, int n, float* out) {
  alignas(64) float acc[N][16] = {};
  const int whole = n / 32 * 32;
  for (int k = 0; k < whole; k += 32) {
    for (int r = 0; r < N; ++r) {
      const bf16* row = y + r * stride + k;
      for (int l = 0; l < 16; ++l) {
        const uint32_t a = load_pair(x + k + 2 * l), b = load_pair(row + 2 * l);
        acc[r][l] = std::fma(even_of(a), even_of(b), std::fma(odd_of(a), odd_of(b), acc[r][l]));
      }
    }
  }
  if (whole < n) {
    for (int r = 0; r < N; ++r) {
      bf16 xt[32] = {}, yt[32] = {};
      std::memcpy(xt, x + whole, (n - whole) * sizeof(bf16));
      std::memcpy(yt, y + r * stride + whole, (n - whole) * sizeof(bf16));
      for (int l = 0; l < 16; ++l) {
        const uint32_t a = load_pair(xt + 2 * l), b = load_pair(yt + 2 * l);
        acc[r][l] = std::fma(even_of(a), even_of(b), std::fma(odd_of(a), odd_of(b), acc[r][l]));
      }
    }
  }
  for (int r = 0; r < N; ++r) out[r] = tree16(acc[r]);
}

inline float dot(const bf16* x, const bf16* y, int n) {
  float out;
  dot_rows<1>(x, y, 0, n, &out);
  return out;
}

// Σ f(i) for i in [0, n), n a multiple of 16: partial i mod 16 takes term(i, acc) in ascending i, then the
// tree.
template <typename Term>
float sum16(int n, Term term) {
  alignas(64) float acc[16] = {};
  for (int i = 0; i < n; i += 16) {
    for (int l = 0; l < 16; ++l) acc[l] = term(i + l, acc[l]);
  }
  return tree16(acc);
}

inline float sum_of_squares(const float* x, int n) {
  return sum16(n, [x](int i, float acc) { return std::fma(x[i], x[i], acc); });
}

}  // namespace perigee::cpu
