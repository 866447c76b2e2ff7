// Scores of index_select, a page of 64 keys at a time. Lanes are keys, so that no product ends in a sum
// across lanes: the 16 partial sums of a product are made one after another, in the order in which the fixed
// tree adds them. Keys and queries are widened once, for all the products they take part in.
#include "ops/cpu/fast/sequence_functions.h"
#include "ops/cpu/fast/simd_cache.h"
#include "ops/cpu/fast/simd_pairs.h"

namespace perigee::cpu::PERIGEE_ISA {

const int kIndexQueryFloats = kIndexPairs * kSplatFloats;

namespace {

// Vectors of 16 keys, and head vectors that meet them together: as many sums as registers hold beside their
// operands, and enough to hide the latency.
#ifdef PERIGEE_ISA_AVX512
constexpr int kVectors = 4, kQueries = 4;
#else
constexpr int kVectors = 1, kQueries = 6;
#endif
constexpr int kGroupKeys = 16 * kVectors;
constexpr int kSteps = kIndexPairs / 16;  // pairs of a partial sum

// Where pair d of a vector stands: the pairs of a partial sum (d mod 16) side by side, and these in the order
// in which the fixed tree is one over neighbours.
constexpr int place_of(int d) {
  constexpr int kPlace[16] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};
  return kPlace[d % 16] * kSteps + d / 16;
}

// Pairs d … d + 7 of 8 keys, widened, as a half of a vector of 16 keys; `out` is the group's first float of
// that half.
PERIGEE_SIMD void store_transposed(const bf16* in, int d, float* out) {
  __m256i r[8], t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    r[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + i * kIndexKeyDim + 2 * d));
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
    store_half_operand(out + place_of(d + i) * kVectors * kOperandFloats,
                       _mm256_permute2x128_si256(r[i], r[i + 4], 0x20));
    store_half_operand(out + place_of(d + i + 4) * kVectors * kOperandFloats,
                       _mm256_permute2x128_si256(r[i], r[i + 4], 0x31));
  }
}

// A group of keys, transposed: a pair of several keys side by side, in the form in which they are multiplied.
// Small enough that it stays in the first cache while all queries meet it.
struct KeyGroup {
  alignas(64) float operands[kIndexPairs * kVectors * kOperandFloats];
  alignas(64) float scale[kGroupKeys];
};

// The sums of N queries with a group of keys.
template <int N>
struct Sums {
  F32x16 of[N][kVectors];
};

template <int N>
PERIGEE_SIMD Sums<N> add(const Sums<N>& a, const Sums<N>& b) {
  Sums<N> s;
#pragma GCC unroll 6
  for (int q = 0; q < N; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) s.of[q][v] = add(a.of[q][v], b.of[q][v]);
  }
  return s;
}

// s ← s + the products of one pair of every query and key. On AVX2 all odd elements come before the even
// ones: one half of the keys at a time leaves registers for the sums.
template <int N>
PERIGEE_SIMD void add_pairs(const float* query, const float* keys, Sums<N>& s) {
#if defined(PERIGEE_ISA_AVX512) && !defined(PERIGEE_EMULATE_AVX512)
  Operand key[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) key[v] = load_operand(keys + v * kOperandFloats);
#pragma GCC unroll 6
  for (int q = 0; q < N; ++q) {
    const Operand x = load_splat(query + q * kIndexQueryFloats);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) s.of[q][v] = pair_fma(x, key[v], s.of[q][v]);
  }
#else
#pragma GCC unroll 2
  for (int odd = 1; odd >= 0; --odd) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const F32x16 key = load(keys + v * kOperandFloats + odd * 16);
#pragma GCC unroll 6
      for (int q = 0; q < N; ++q)
        s.of[q][v] = fma(splat(query[q * kIndexQueryFloats + odd]), key, s.of[q][v]);
    }
  }
#endif
}

template <int N>
PERIGEE_SIMD Sums<N> partial(const float* query, const float* keys) {
  Sums<N> s;
#pragma GCC unroll 6
  for (int q = 0; q < N; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) s.of[q][v] = zero();
  }
#pragma GCC unroll 4
  for (int step = 0; step < kSteps; ++step)
    add_pairs<N>(query + step * kSplatFloats, keys + step * kVectors * kOperandFloats, s);
  return s;
}

// The tree's node over the partial sums 4i … 4i + 3.
template <int N>
[[gnu::noinline]] void tree_quarter(const float* query, const float* keys, int i, Sums<N>& out) {
  const auto of = [&](int j) {
    const int64_t at = (4 * i + j) * kSteps;
    return partial<N>(query + at * kSplatFloats, keys + at * kVectors * kOperandFloats);
  };
  const Sums<N> low = add(of(0), of(1));
  out = add(low, add(of(2), of(3)));
}

// Integers in the upper halves that order as the selection rule does: −0 = +0, NaN last.
PERIGEE_SIMD I32x16 order(F32x16 score) {
  const I32x16 sign = sub(splat_bits(0), shift_right<31>(bits(score)));  // all ones where negative
  const I32x16 magnitude = bits(score) & splat_bits(0x7FFFFFFFu);
  const I32x16 ordered = add(splat_bits(0x80000000u), sub(magnitude ^ sign, sign));
  return bits(select(unordered(score), zero(), from_bits(ordered)));
}

// The scores of a group of keys, row by row: queries come in order, the heads of a row one after another.
class GroupScores {
 public:
  GroupScores(const KeyGroup& keys, const IndexScores& scores, uint16_t* out)
      : s_(scores), keys_(keys.operands), scale_(keys.scale), out_(out) {
    for (F32x16& t : total_) t = zero();
  }

  // Queries [q, q + N): Σ over heads of w · relu(q·k), head by head.
  template <int N>
  void add_queries(int q) {
    const float* query = s_.query + int64_t{q} * kIndexQueryFloats;
    Sums<N> quarter[4];
    for (int i = 0; i < 4; ++i) tree_quarter<N>(query, keys_, i, quarter[i]);
    const Sums<N> x = add(add(quarter[0], quarter[1]), add(quarter[2], quarter[3]));
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      const F32x16 weight = splat(s_.weight[q + i]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        total_[v] = fma(weight, max(x.of[i][v], zero()), total_[v]);  // NaN stays
      if (++head_ == s_.heads) finish_row();
    }
  }

 private:
  void finish_row() {
    alignas(64) bf16 score[16];
    for (int v = 0; v < kVectors; ++v) {
      store_bf16(score, mul(load(scale_ + v * 16), total_[v]));
      store_upper_halves(out_ + v * 16, order(load_bf16(score)));
      total_[v] = zero();
    }
    out_ += s_.stride;
    head_ = 0;
  }

  const IndexScores& s_;
  const float *keys_, *scale_;
  F32x16 total_[kVectors];
  uint16_t* out_;
  int head_ = 0;
};

void decode_group(IndexKeyFormat format, const uint8_t* page, int first, KeyGroup& out) {
  alignas(64) bf16 rows[8 * kIndexKeyDim];
  for (int key = 0; key < kGroupKeys; key += 8) {
    for (int i = 0; i < 8; ++i) {
      const int at = first + key + i;
      out.scale[key + i] = index_key_values(format, page + index_value_offset(format, at),
                                            page + index_scale_offset(format, at), rows + i * kIndexKeyDim);
    }
    float* half = out.operands + key / 16 * kOperandFloats + key % 16;
    for (int d = 0; d < kIndexPairs; d += 8) store_transposed(rows, d, half);
  }
}

}  // namespace

void prepare_index_query(const bf16* query, float* prepared) {
  for (int d = 0; d < kIndexPairs; ++d)
    store_splat(prepared + place_of(d) * kSplatFloats, load_pair(query + 2 * d));
}

void score_index_page(IndexKeyFormat format, const uint8_t* page, const IndexScores& s) {
  const int queries = s.rows * s.heads;
  KeyGroup keys;
  for (int first = 0; first < kPageTokens; first += kGroupKeys) {
    decode_group(format, page, first, keys);
    GroupScores scores(keys, s, s.key + first);
    int q = 0;
    for (; q + kQueries <= queries; q += kQueries) scores.add_queries<kQueries>(q);
    for (; q + 2 <= queries; q += 2) scores.add_queries<2>(q);
    if (q < queries) scores.add_queries<1>(q);
  }
}

}  // namespace perigee::cpu::PERIGEE_ISA
