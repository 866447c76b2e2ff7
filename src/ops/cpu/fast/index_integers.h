// Scores of e4m3 keys by integer products, twice as many an instruction as fused multiply-adds of AVX2. In
// steps of 1/16 all e4m3 values from 1/2 on are integers, so such a score is off by very little, and by no
// more than a bound computed with it. Where the plain sum could round to another bf16 the caller computes it.
#pragma once

#include "ops/cpu/fast/sequence_kernels.h"
#include "ops/cpu/fast/simd.h"
#include "ops/cpu/fast/simd_cache.h"
#include "ops/cpu/fast/simd_elementary.h"

namespace perigee::cpu::PERIGEE_ISA {

constexpr float kHuge = 1e30f, kInfinity = __builtin_inff();
constexpr float kKeySteps = 16.0f;              // integers of one unit of a key
constexpr float kLargestKey = 448 * kKeySteps;  // of an integer of a key
constexpr float kMostKeyNorm = 46000.0f;        // with a query's as large, products stay below 2^31
constexpr float kMostQueryNorm = 46000.0f;      // before the rounding
constexpr float kRounding = 0x1p-24f;           // of one fp32 operation
constexpr float kNormSlack = 6.0f;              // ≥ ½·√128: what rounding may add to a norm of 128 integers
constexpr int kMostIntegerHeads = 1024;         // few enough that errors of errors stay within 1 %

// A prepared query. `Float` is float to write it, const float to read it.
template <typename Float>
struct IntegerQuery {
  Float* bounds;  // [4] of the distance of a score from the plain one: by the key's norm, by what rounding
                  // the key lost, by the sum of magnitudes, and whatever the key
  Float* weight;  // [heads] of the head, for a step of query times a step of key
  Float* pairs;   // [heads, 64] the bits of two int16 each

  IntegerQuery(Float* memory, int heads) : bounds(memory), weight(memory + 4), pairs(memory + 4 + heads) {}
};
inline int64_t integer_query_floats(int heads) { return 4 + int64_t{heads} * (1 + kIndexKeyDim / 2); }

// Steps a unit of a query: the largest power of two at which neither an integer nor a dot product overflows.
PERIGEE_SIMD float query_steps(float norm, float largest) {
  if (!(norm > 0.0f)) return 1.0f;
  const float by_norm = kMostQueryNorm / norm, by_value = 32700.0f / largest;
  const float most = by_norm < by_value ? by_norm : by_value;
  const float bounded = most < 0x1p20f ? most : 0x1p20f;
  uint32_t bits;
  __builtin_memcpy(&bits, &bounded, sizeof bits);
  bits &= 0x7F800000u;
  float power;
  __builtin_memcpy(&power, &bits, sizeof power);
  return power;
}

inline void prepare_integers(const IndexScores& s, float* memory) {
  const IntegerQuery<float> out(memory, s.heads);
  float by_norm = 0.0f, by_rounding = 0.0f, fixed = s.heads <= kMostIntegerHeads ? 0.0f : kInfinity;
  for (int h = 0; h < s.heads; ++h) {
    const bf16* q = s.query + h * kIndexKeyDim;
    F32x16 squares = zero(), top = zero();
    for (int d = 0; d < kIndexKeyDim; d += 16) {
      const F32x16 x = load_bf16(q + d);
      squares = fma(x, x, squares);
      top = max(top, magnitude(x));
    }
    alignas(64) float lanes[16];
    store(lanes, top);
    float largest = 0.0f;
    for (float x : lanes) largest = largest < x ? x : largest;
    const float norm = __builtin_sqrtf(tree16(squares)), steps = query_steps(norm, largest);

    F32x16 lost = zero();
    for (int d = 0; d < kIndexKeyDim; d += 16) {
      const F32x16 x = mul(load_bf16(q + d), splat(steps));
      const __m256i lo = _mm256_cvtps_epi32(x.lo), hi = _mm256_cvtps_epi32(x.hi);
      const F32x16 rounded{_mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi)};
      lost = add(lost, magnitude(sub(x, rounded)));
      const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0b11011000);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.pairs + (h * kIndexKeyDim + d) / 2), packed);
    }
    const float w = __builtin_fabsf(s.weight[h]) / (steps * kKeySteps);
    // Beyond these, a weight or a query may leave the range in which only roundings lose something.
    const bool usable = w == 0.0f || (w > 0x1p-100f && w < 0x1p90f);
    if (!usable || !(norm < kHuge)) fixed = kInfinity;
    out.weight[h] = s.weight[h] / (steps * kKeySteps);
    // A plain dot product rounds 8 times in each of 16 sums and 4 times in the tree.
    by_norm += w * 12.5f * kRounding * (norm * steps);
    by_rounding += w * (largest * steps + 0.5f);
    fixed += w * kLargestKey * (tree16(lost) + 1e-20f);  // and a little for what DAZ takes for zero
  }
  out.bounds[0] = by_norm;
  out.bounds[1] = by_rounding;
  // A round by round sum of the heads here and in the plain code, and a few operations more.
  out.bounds[2] = static_cast<float>(2 * s.heads + 12) * kRounding;
  out.bounds[3] = fixed;
}

// 128 e4m3 codes in steps of 1/16, rounded; `norm` bounds the vector's before the rounding, infinite for NaN
// or where products might overflow; `rounding` bounds the sum of what it lost.
PERIGEE_SIMD void key_integers(const uint8_t* codes, bf16* out, float& norm, float& rounding) {
  // 2^(e − 2) of the exponent bits e, in two bytes: (8 + m)·2^11 times that over 2^15 is (8 + m)·2^(e − 6).
  const __m256i power_low = table(0, 0, 1, 2, 4, 8, 16, 32, 64, static_cast<char>(128), 0, 0, 0, 0, 0, 0);
  const __m256i power_high = table(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32);
  const __m256i zeros = _mm256_setzero_si256(), last_rounded = _mm256_set1_epi8(46);
  __m256i squares = zeros, small = zeros, is_nan = zeros;
#pragma GCC unroll 4
  for (int i = 0; i < kIndexKeyDim; i += 32) {
    const __m256i c = load_codes(codes + i), magnitude = _mm256_and_si256(c, _mm256_set1_epi8(0x7F));
    is_nan = _mm256_or_si256(is_nan, _mm256_cmpeq_epi8(magnitude, _mm256_set1_epi8(0x7F)));
    const __m256i behind_zero = _mm256_sub_epi8(magnitude, _mm256_set1_epi8(1));
    small =
        _mm256_sub_epi8(small, _mm256_cmpeq_epi8(_mm256_min_epu8(behind_zero, last_rounded), behind_zero));

    const __m256i e = _mm256_and_si256(_mm256_srli_epi16(magnitude, 3), _mm256_set1_epi8(0x0F));
    const __m256i low = _mm256_shuffle_epi8(power_low, e), high = _mm256_shuffle_epi8(power_high, e);
    const __m256i significand =
        _mm256_or_si256(_mm256_and_si256(magnitude, _mm256_set1_epi8(7)), _mm256_set1_epi8(8));
    const __m256i upper = _mm256_slli_epi16(significand, 3);  // times 2^11 in an upper byte
    const __m256i a = _mm256_sign_epi16(
        _mm256_mulhrs_epi16(_mm256_unpacklo_epi8(zeros, upper), _mm256_unpacklo_epi8(low, high)),
        _mm256_unpacklo_epi8(zeros, c));
    const __m256i b = _mm256_sign_epi16(
        _mm256_mulhrs_epi16(_mm256_unpackhi_epi8(zeros, upper), _mm256_unpackhi_epi8(low, high)),
        _mm256_unpackhi_epi8(zeros, c));
    // No lane overflows: 16 squares of at most 7,680.
    squares = _mm256_add_epi32(squares, _mm256_add_epi32(_mm256_madd_epi16(a, a), _mm256_madd_epi16(b, b)));
    auto* to = reinterpret_cast<__m256i*>(out + i);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(a, b, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(a, b, 0x31));
  }
  const __m256i count = _mm256_sad_epu8(small, zeros);
  const __m128i half = _mm_add_epi64(_mm256_castsi256_si128(count), _mm256_extracti128_si256(count, 1));
  rounding = 0.5f * static_cast<float>(_mm_cvtsi128_si32(half) + _mm_extract_epi32(half, 2));
  const __m256 sums = _mm256_cvtepi32_ps(squares);
  const float length = __builtin_sqrtf(tree16({sums, _mm256_setzero_ps()}));
  norm = length < kMostKeyNorm && _mm256_testz_si256(is_nan, is_nan) ? length + kNormSlack : kInfinity;
}

// sum ← sum + Σ w · relu(q·k) and size ← size + Σ |w| · relu(q·k), over kHeads heads and 16 keys.
template <int kHeads>
[[gnu::noinline]] void add_integer_heads(const float* query, const float* weight, const uint32_t* keys,
                                         float* sum, float* size) {
  __m256i acc[kHeads][2];
#pragma GCC unroll 8
  for (int h = 0; h < kHeads; ++h) acc[h][0] = acc[h][1] = _mm256_setzero_si256();
#pragma GCC unroll 2
  for (int d = 0; d < kIndexKeyDim / 2; ++d) {
    const I32x16 key = load_bits(keys + d * kPageTokens);
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
      const __m256i q = _mm256_castps_si256(_mm256_broadcast_ss(query + h * (kIndexKeyDim / 2) + d));
      acc[h][0] = _mm256_add_epi32(acc[h][0], _mm256_madd_epi16(q, key.lo));
      acc[h][1] = _mm256_add_epi32(acc[h][1], _mm256_madd_epi16(q, key.hi));
    }
  }
  F32x16 s = load(sum), p = load(size);
#pragma GCC unroll 8
  for (int h = 0; h < kHeads; ++h) {
    const F32x16 x = max(F32x16{_mm256_cvtepi32_ps(acc[h][0]), _mm256_cvtepi32_ps(acc[h][1])}, zero());
    const F32x16 w = splat(weight[h]);
    s = fma(w, x, s);
    p = fma(magnitude(w), x, p);
  }
  store(sum, s);
  store(size, p);
}

// The least and the greatest bf16 that the scores of the 16 keys from `first` may round to.
inline void integer_scores(const IndexPanel& panel, int first, const float* prepared, int heads, bf16* least,
                           bf16* greatest) {
  const IntegerQuery<const float> q(prepared, heads);
  alignas(64) float sum[16] = {}, size[16] = {};
  const uint32_t* keys = panel.pairs + first;
  int h = 0;
  for (; h + 4 <= heads; h += 4)
    add_integer_heads<4>(q.pairs + h * (kIndexKeyDim / 2), q.weight + h, keys, sum, size);
  if (h + 2 <= heads) {
    add_integer_heads<2>(q.pairs + h * (kIndexKeyDim / 2), q.weight + h, keys, sum, size);
    h += 2;
  }
  if (h < heads) add_integer_heads<1>(q.pairs + h * (kIndexKeyDim / 2), q.weight + h, keys, sum, size);

  F32x16 bound = fma(splat(q.bounds[0]), load(panel.norm + first), splat(q.bounds[3]));
  bound = fma(splat(q.bounds[1]), load(panel.rounding + first), bound);
  bound = fma(splat(q.bounds[2]), load(size), bound);
  // One per cent for the roundings of these bounds themselves, and for what FTZ takes for zero.
  bound = fma(bound, splat(1.01f), splat(1e-33f));
  const Mask16 known = less(bound, splat(kHuge));
  const F32x16 scale = load(panel.scale + first), middle = load(sum);
  store_bf16(least, select(known, mul(scale, sub(middle, bound)), splat(-kInfinity)));
  store_bf16(greatest, select(known, mul(scale, add(middle, bound)), splat(kInfinity)));
}

}  // namespace perigee::cpu::PERIGEE_ISA
