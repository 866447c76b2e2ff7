#include "ops/cpu/fast/top_k.h"

#include <immintrin.h>

#include <bit>

namespace perigee::cpu {

namespace {

constexpr int kHistograms = 4;  // side by side, so that equal keys in a row do not wait for each other

// The largest digit d such that at least `kept` counts lie at d or above; `kept` becomes how many of d's own
// are needed.
int find_digit(const int32_t (*histogram)[256], int64_t& kept) {
  for (int digit = 255;; --digit) {
    int64_t count = 0;
    for (int h = 0; h < kHistograms; ++h) count += histogram[h][digit];
    if (count >= kept) return digit;
    kept -= count;
  }
}

// Bit i: key[i] ≥ bound, for 16 keys.
uint32_t not_below(const uint16_t* key, __m256i bound) {
  const __m256i k = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(key));
  const __m256i hit = _mm256_cmpeq_epi16(_mm256_max_epu16(k, bound), k);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(hit), _mm256_extracti128_si256(hit, 1));
  return static_cast<uint32_t>(_mm_movemask_epi8(bytes));
}

}  // namespace

void select_top(const uint16_t* key, int64_t n, int64_t kept, int32_t* selected) {
  int64_t ties = kept;  // in the end: how many of those equal to the threshold are kept
  int32_t upper[kHistograms][256] = {}, lower[kHistograms][256] = {};
  for (int64_t i = 0; i < n; ++i) ++upper[i % kHistograms][key[i] >> 8];
  const int high = find_digit(upper, ties);
  for (int64_t i = 0; i < n; ++i) {
    if (key[i] >> 8 == high) ++lower[i % kHistograms][key[i] & 0xFF];
  }
  const uint16_t threshold = static_cast<uint16_t>(high << 8 | find_digit(lower, ties));

  int64_t out = 0;
  const auto visit = [&](int64_t i) {
    if (key[i] > threshold || (key[i] == threshold && ties-- > 0)) selected[out++] = static_cast<int32_t>(i);
  };
  const __m256i bound = _mm256_set1_epi16(static_cast<short>(threshold));
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (uint32_t hits = not_below(key + i, bound); hits; hits &= hits - 1) visit(i + std::countr_zero(hits));
  }
  for (; i < n; ++i) visit(i);
}

}  // namespace perigee::cpu
