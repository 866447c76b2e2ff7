#include "ops/cpu/fast/top_k.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>

#include "ops/cpu/fast/scratch.h"

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

struct Threshold {
  uint16_t key;
  int64_t ties;  // how many of those equal to it are kept
};

// The `kept`-th largest of key[0, n).
Threshold find_threshold(const uint16_t* key, int64_t n, int64_t kept) {
  int32_t upper[kHistograms][256] = {}, lower[kHistograms][256] = {};
  for (int64_t i = 0; i < n; ++i) ++upper[i % kHistograms][key[i] >> 8];
  const int high = find_digit(upper, kept);
  for (int64_t i = 0; i < n; ++i) {
    if (key[i] >> 8 == high) ++lower[i % kHistograms][key[i] & 0xFF];
  }
  const int low = find_digit(lower, kept);
  return {static_cast<uint16_t>(high << 8 | low), kept};
}

// Calls visit(i) for every key[i] ≥ bound, in ascending i.
template <typename Visit>
void for_not_below(const uint16_t* key, int64_t n, uint16_t bound, Visit visit) {
  const __m256i bounds = _mm256_set1_epi16(static_cast<short>(bound));
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (uint32_t hits = not_below(key + i, bounds); hits; hits &= hits - 1)
      visit(i + std::countr_zero(hits));
  }
  for (; i < n; ++i) {
    if (key[i] >= bound) visit(i);
  }
}

void select_among_all(const uint16_t* key, int64_t n, int64_t kept, int32_t* selected) {
  auto [threshold, ties] = find_threshold(key, n, kept);
  for_not_below(key, n, threshold, [&](int64_t i) {
    if (key[i] > threshold || ties-- > 0) *selected++ = static_cast<int32_t>(i);
  });
}

constexpr int64_t kSampleStride = 15;  // odd, so that no period of the text falls in step with it
constexpr int64_t kFew = 8;            // times as many keys as are kept make a sample worth its pass

// A key that more than `kept` of key[0, n) probably reach, but few more.
uint16_t likely_bound(const uint16_t* key, int64_t n, int64_t kept, Arena& arena) {
  const int64_t count = n / kSampleStride;
  auto* sample = arena.take<uint16_t>(count);
  for (int64_t i = 0; i < count; ++i) sample[i] = key[i * kSampleStride];
  const int64_t share = kept / kSampleStride;
  return find_threshold(sample, count, std::min(count, share + share / 4 + 16)).key;
}

}  // namespace

void select_top(const uint16_t* key, int64_t n, int64_t kept, int32_t* selected) {
  if (n < kFew * kept || n < 1024) return select_among_all(key, n, kept, selected);
  Arena& arena = thread_arena();
  const Arena::Scope scope(arena);
  auto* position = arena.take<int32_t>(n);
  auto* candidate = arena.take<uint16_t>(n);
  int64_t count = 0;
  for_not_below(key, n, likely_bound(key, n, kept, arena), [&](int64_t i) {
    position[count] = static_cast<int32_t>(i);
    candidate[count++] = key[i];
  });
  if (count < kept) return select_among_all(key, n, kept, selected);  // the sample was unlucky
  select_among_all(candidate, count, kept, selected);
  for (int64_t i = 0; i < kept; ++i) selected[i] = position[selected[i]];
}

}  // namespace perigee::cpu
