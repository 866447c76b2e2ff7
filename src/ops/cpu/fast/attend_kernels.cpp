// One tile of an attention walk for some heads at once: logits (lanes are the partial sums of a product),
// softmax (lanes are keys), values (lanes are latent dimensions).
#include "ops/cpu/fast/sequence_functions.h"
#include "ops/cpu/fast/simd_cache.h"
#include "ops/cpu/fast/simd_elementary.h"
#include "ops/cpu/fast/simd_pairs.h"

namespace perigee::cpu::PERIGEE_ISA {

namespace {

constexpr int kBlocks = kLatentDim / 32;  // blocks of 16 pairs in a latent
#ifdef PERIGEE_ISA_AVX512
constexpr int kHeadBlock = 4, kKeyBlock = 4;  // products at once, as many as registers hold
constexpr int kValueHeads = 8;
#else
constexpr int kHeadBlock = 2, kKeyBlock = 2;
constexpr int kValueHeads = 4;
#endif
constexpr int kHeadGroup = 8;  // heads whose prepared queries stay in the first cache over the keys of a tile

// logit[h·kKeyTile + j] of kHeads heads and kKeys keys.
template <int kHeads, int kKeys>
PERIGEE_SIMD void logits(const float* query, const bf16* const* key, float scale, float* logit) {
  F32x16 sum[kHeads][kKeys];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int j = 0; j < kKeys; ++j) sum[h][j] = zero();
  }
#pragma GCC unroll 1
  for (int b = 0; b < kBlocks; ++b) {
    Operand k[kKeys];
#pragma GCC unroll 4
    for (int j = 0; j < kKeys; ++j) k[j] = operand(load_pairs(key[j] + b * 32));
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const Operand q = load_operand(query + (h * kBlocks + b) * kOperandFloats);
#pragma GCC unroll 4
      for (int j = 0; j < kKeys; ++j) sum[h][j] = pair_fma(q, k[j], sum[h][j]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int j = 0; j < kKeys; ++j) logit[h * kKeyTile + j] = tree16(sum[h][j]) * scale;
  }
}

// The logits of kKeys keys from j on, for all heads of a group while the keys are in the first cache.
template <int kKeys>
void logits_of_keys(const float* query, int heads, const AttendTile& tile, int j, float scale, float* logit) {
  int h = 0;
  for (; h + kHeadBlock <= heads; h += kHeadBlock)
    logits<kHeadBlock, kKeys>(query + h * kQueryFloats, tile.key + j, scale, logit + h * kKeyTile + j);
  for (; h < heads; ++h)
    logits<1, kKeys>(query + h * kQueryFloats, tile.key + j, scale, logit + h * kKeyTile + j);
}

// From a head's logits: max and sum move on, p̂ (bf16, as fp32) replaces the logits, zero behind the last key;
// returns what the value so far is multiplied with.
PERIGEE_SIMD float softmax(float* logit, int count, bool first, float& max_so_far, float& sum_so_far) {
  constexpr float kInfinity = __builtin_inff();
  for (int j = count; j < kKeyTile; ++j) logit[j] = -kInfinity;
  F32x16 top16 = splat(-kInfinity);
  for (int j = 0; j < kKeyTile; j += 16) top16 = max(top16, load(logit + j));
  alignas(64) float lanes[16];
  store(lanes, top16);
  float top = lanes[0];
  for (int l = 1; l < 16; ++l) top = top < lanes[l] ? lanes[l] : top;
  const float m = first ? top : (max_so_far < top ? top : max_so_far);

  alignas(64) float p[kKeyTile];
  for (int j = 0; j < kKeyTile; j += 16) store(p + j, exp(sub(load(logit + j), splat(m))));
  for (int j = count; j < kKeyTile; ++j) p[j] = 0.0f;
  F32x16 sum = zero();
  for (int j = 0; j < kKeyTile; j += 16) sum = add(sum, load(p + j));
  alignas(64) bf16 p_hat[kKeyTile];
  for (int j = 0; j < kKeyTile; j += 16) store_bf16(p_hat + j, load(p + j));
  for (int j = 0; j < kKeyTile; j += 16) store(logit + j, load_bf16(p_hat + j));

  float rescale = 0.0f;
  if (!first) {
    store(lanes, exp(splat(max_so_far - m)));
    rescale = lanes[0];
  }
  sum_so_far = __builtin_fmaf(first ? 0.0f : sum_so_far, rescale, tree16(sum));
  max_so_far = m;
  return rescale;
}

// value ← value·rescale + Σ p̂ c over key pairs, odd first; an odd count pairs the last key with an exact
// zero.
template <int kHeads>
void add_values(const AttendTile& tile, const float* p, const float* rescale, float* value) {
  for (int d = 0; d < kLatentRank; d += 16) {
    F32x16 z[kHeads];
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
      // Before the first tile there is no value yet, and what lies there may be anything.
      z[h] = tile.first ? zero() : mul(load(value + h * kLatentRank + d), splat(rescale[h]));
    }
#pragma GCC unroll 1
    for (int j = 0; j < tile.count; j += 2) {
      const F32x16 c0 = load_bf16(tile.key[j] + d);
      const F32x16 c1 = load_bf16(tile.key[j + 1 < tile.count ? j + 1 : j] + d);
#pragma GCC unroll 8
      for (int h = 0; h < kHeads; ++h) {
        z[h] = fma(splat(p[h * kKeyTile + j]), c0, fma(splat(p[h * kKeyTile + j + 1]), c1, z[h]));
      }
    }
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) store(value + h * kLatentRank + d, z[h]);
  }
}

}  // namespace

const int kQueryFloats = kBlocks * kOperandFloats;

void prepare_query(const bf16* query, float* prepared) {
  for (int b = 0; b < kBlocks; ++b)
    store_operand(prepared + b * kOperandFloats, operand(load_pairs(query + b * 32)));
}

void decode_latent(LatentFormat format, const uint8_t* record, float scale, bf16* out) {
  latent_values(format, record, scale, out);
}

void add_tile(const AttendWalk& walk, const AttendTile& tile) {
  alignas(64) float p[kHeadGroup * kKeyTile];
  float rescale[kHeadGroup];
  for (int group = 0; group < walk.heads; group += kHeadGroup) {
    const int heads = walk.heads - group < kHeadGroup ? walk.heads - group : kHeadGroup;
    const float* query = walk.query + group * kQueryFloats;
    float* value = walk.value + group * kLatentRank;
    int j = 0, h = 0;
    for (; j + kKeyBlock <= tile.count; j += kKeyBlock)
      logits_of_keys<kKeyBlock>(query, heads, tile, j, walk.scale, p);
    for (; j < tile.count; ++j) logits_of_keys<1>(query, heads, tile, j, walk.scale, p);
    for (; h < heads; ++h)
      rescale[h] =
          softmax(p + h * kKeyTile, tile.count, tile.first, walk.max[group + h], walk.sum[group + h]);
    for (h = 0; h + kValueHeads <= heads; h += kValueHeads)
      add_values<kValueHeads>(tile, p + h * kKeyTile, rescale + h, value + h * kLatentRank);
    for (; h < heads; ++h) add_values<1>(tile, p + h * kKeyTile, rescale + h, value + h * kLatentRank);
  }
}

}  // namespace perigee::cpu::PERIGEE_ISA
