// Scores of index_select, a page of 64 keys at a time. Lanes are keys, so that no product ends in a sum
// across lanes: the 16 partial sums of a product are made one after another, in the order in which the fixed
// tree adds them.
#include "ops/cpu/fast/sequence_functions.h"
#include "ops/cpu/fast/simd_cache.h"
#include "ops/cpu/fast/simd_pairs.h"

namespace perigee::cpu::PERIGEE_ISA {

namespace {

constexpr int kPairs = kIndexKeyDim / 2;
#ifdef PERIGEE_ISA_AVX512
constexpr int kGroup = 4;  // vectors of 16 keys scored together: enough sums in flight to hide the latency
#else
constexpr int kGroup = 1;
#endif

// 8 rows of 8 pairs → columns; out has row stride kPageTokens.
PERIGEE_SIMD void transpose8(const bf16* in, int stride, uint32_t* out) {
  __m256i r[8], t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + i * stride));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    r[4 * i] = _mm256_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm256_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm256_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm256_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    auto* low = reinterpret_cast<__m256i*>(out + i * kPageTokens);
    auto* high = reinterpret_cast<__m256i*>(out + (i + 4) * kPageTokens);
    _mm256_storeu_si256(low, _mm256_permute2x128_si256(r[i], r[i + 4], 0x20));
    _mm256_storeu_si256(high, _mm256_permute2x128_si256(r[i], r[i + 4], 0x31));
  }
}

// sums[h][v] of kHeads heads and kGroup·16 keys.
template <int kHeads>
struct Sums {
  F32x16 of[kHeads][kGroup];
};

// Partial sum l of the products: pairs l, l + 16, l + 32, l + 48.
template <int kHeads>
PERIGEE_SIMD Sums<kHeads> partial(const bf16* query, const uint32_t* keys, int l) {
  Sums<kHeads> s;
#pragma GCC unroll 8
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int v = 0; v < kGroup; ++v) s.of[h][v] = zero();
  }
#pragma GCC unroll 1
  for (int d = l; d < kPairs; d += 16) {
    Operand key[kGroup];
#pragma GCC unroll 4
    for (int v = 0; v < kGroup; ++v) key[v] = operand(load_bits(keys + d * kPageTokens + v * 16));
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
      const Operand q = operand(splat_pair(query + h * kIndexKeyDim + 2 * d));
#pragma GCC unroll 4
      for (int v = 0; v < kGroup; ++v) s.of[h][v] = pair_fma(q, key[v], s.of[h][v]);
    }
  }
  return s;
}

template <int kHeads>
PERIGEE_SIMD Sums<kHeads> add(const Sums<kHeads>& a, const Sums<kHeads>& b) {
  Sums<kHeads> s;
#pragma GCC unroll 8
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int v = 0; v < kGroup; ++v) s.of[h][v] = add(a.of[h][v], b.of[h][v]);
  }
  return s;
}

// The tree's node over the partial sums i, i + stride, i + 2·stride, …
template <int kHeads>
PERIGEE_SIMD Sums<kHeads> tree_quarter(const bf16* query, const uint32_t* keys, int i) {
  const Sums<kHeads> a = add(partial<kHeads>(query, keys, i), partial<kHeads>(query, keys, i + 8));
  const Sums<kHeads> b = add(partial<kHeads>(query, keys, i + 4), partial<kHeads>(query, keys, i + 12));
  return add(a, b);
}

// total ← total + Σ over kHeads heads of w · relu(q·k), head by head.
template <int kHeads>
[[gnu::noinline]] void add_heads(const bf16* query, const float* weight, const uint32_t* keys, float* total) {
  const Sums<kHeads> even = add(tree_quarter<kHeads>(query, keys, 0), tree_quarter<kHeads>(query, keys, 2));
  const Sums<kHeads> odd = add(tree_quarter<kHeads>(query, keys, 1), tree_quarter<kHeads>(query, keys, 3));
  const Sums<kHeads> x = add(even, odd);
#pragma GCC unroll 4
  for (int v = 0; v < kGroup; ++v) {
    F32x16 sum = load(total + v * 16);
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) sum = fma(splat(weight[h]), max(x.of[h][v], zero()), sum);  // NaN stays
    store(total + v * 16, sum);
  }
}

}  // namespace

void decode_index_page(IndexKeyFormat format, const uint8_t* page, IndexPanel& panel) {
  alignas(64) bf16 rows[8 * kIndexKeyDim];
  for (int key = 0; key < kPageTokens; key += 8) {
    for (int i = 0; i < 8; ++i) {
      panel.scale[key + i] =
          index_key_values(format, page + index_value_offset(format, key + i),
                           page + index_scale_offset(format, key + i), rows + i * kIndexKeyDim);
    }
    for (int d = 0; d < kPairs; d += 8) {
      transpose8(rows + 2 * d, kIndexKeyDim, panel.pairs + d * kPageTokens + key);
    }
  }
}

void score_index_page(const IndexPanel& panel, const IndexScores& s) {
  alignas(64) bf16 score[kPageTokens];
  for (int key = 0; key < kPageTokens; key += 16 * kGroup) {
    alignas(64) float total[16 * kGroup] = {};
    int h = 0;
    for (; h + 4 <= s.heads; h += 4)
      add_heads<4>(s.query + h * kIndexKeyDim, s.weight + h, panel.pairs + key, total);
    for (; h < s.heads; ++h) add_heads<1>(s.query + h * kIndexKeyDim, s.weight + h, panel.pairs + key, total);
    for (int v = 0; v < kGroup; ++v) {
      const int at = key + v * 16;
      store_bf16(score + at, mul(load(panel.scale + at), load(total + v * 16)));
    }
  }
  for (int i = 0; i < kPageTokens; ++i) {
    const uint16_t magnitude = score[i] & 0x7FFF;
    const uint16_t order = score[i] & 0x8000 ? 0x8000 - magnitude : 0x8000 + magnitude;
    s.key[i] = magnitude > 0x7F80 ? 0 : order;
  }
}

}  // namespace perigee::cpu::PERIGEE_ISA
