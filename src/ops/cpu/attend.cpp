// Absorbed attention over latents: sparse_attend and dense_attend, both as walks over keys in ascending
// position.
#include <algorithm>
#include <limits>
#include <vector>

#include "ops/cpu/backend.h"
#include "ops/cpu/matmul.h"
#include "ops/elementary.h"

namespace perigee::cpu {

namespace {

// The state of a walk: running max m, sum l, value z. Empty until the first key.
struct Walk {
  float m = 0.0f, l = 0.0f;
  std::vector<float> z;
  bool empty() const { return z.empty(); }
};

// One head's query against decoded latents.
struct Head {
  const bf16* query;  // [latent]
  int latent, rank;
  float scale;
};

// Adds one tile of at most kKeyTile keys: key[j] points at a decoded latent.
void add_tile(Walk& walk, const Head& head, const bf16* const* key, int count) {
  float logit[kKeyTile];
  bf16 p_hat[kKeyTile + 1] = {};
  float top = -std::numeric_limits<float>::infinity();
  for (int j = 0; j < count; ++j) {
    logit[j] = dot(head.query, key[j], head.latent) * head.scale;
    top = std::max(top, logit[j]);
  }
  const bool first = walk.empty();
  if (first) walk.z.assign(head.rank, 0.0f);
  const float m = first ? top : std::max(walk.m, top);
  float p[kKeyTile] = {};
  for (int j = 0; j < count; ++j) {
    p[j] = exp(logit[j] - m);
    p_hat[j] = float_to_bf16(p[j]);
  }
  const float rescale = first ? 0.0f : exp(walk.m - m);
  walk.l = std::fma(walk.l, rescale, sum16(kKeyTile, [&](int j, float acc) { return acc + p[j]; }));
  walk.m = m;
  float* z = walk.z.data();
  for (int d = 0; d < head.rank; ++d) z[d] *= rescale;
  for (int j = 0; j < count;
       j += 2) {  // pairs, odd first; an odd count pairs the last key with an exact zero
    const float p0 = bf16_to_float(p_hat[j]), p1 = bf16_to_float(p_hat[j + 1]);
    const bf16 *c0 = key[j], *c1 = j + 1 < count ? key[j + 1] : key[j];
    for (int d = 0; d < head.rank; ++d)
      z[d] = std::fma(p0, bf16_to_float(c0[d]), std::fma(p1, bf16_to_float(c1[d]), z[d]));
  }
}

Walk walk_keys(const Head& head, const std::vector<const bf16*>& keys, int tile) {
  Walk walk;
  const int count = static_cast<int>(keys.size());
  for (int j = 0; j < count; j += tile) add_tile(walk, head, keys.data() + j, std::min(tile, count - j));
  return walk;
}

// left ← left folded with right, the later keys.
void fold(Walk& left, Walk&& right) {
  if (right.empty()) return;
  if (left.empty()) {
    left = std::move(right);
    return;
  }
  const float m = std::max(left.m, right.m), a = exp(left.m - m), b = exp(right.m - m);
  left.m = m;
  left.l = std::fma(left.l, a, right.l * b);
  for (size_t d = 0; d < left.z.size(); ++d) left.z[d] = std::fma(left.z[d], a, right.z[d] * b);
}

// The latents of positions [0, total) of one sequence, decoded to bf16.
std::vector<bf16> decode_latents(ThreadPool& pool, const PageTable& pages, int latent, int64_t total) {
  std::vector<bf16> out(total * latent);
  const int64_t bytes = latent_bytes(pages.latent_format);
  pool.run(total, [&](int64_t p) {
    decode_latent(pages.latent_format, pages.latent(p / kPageTokens) + p % kPageTokens * bytes,
                  pages.latent_scale, &out[p * latent]);
  });
  return out;
}

// For every row and head: position(row, i) for i < count(row) lists the visible keys in ascending order;
// segments of `segment` positions and attention lanes are walks of their own.
template <typename Count, typename Position>
void attend(ThreadPool& pool, const AttendArgs& a, int64_t segment, const Count& count,
            const Position& position) {
  const int heads = a.config.num_heads, latent = a.config.latent_dim(), rank = a.config.kv_lora_rank;
  const float scale = 1.0f / std::sqrt(static_cast<float>(a.config.qk_head_dim()));
  for (size_t s = 0; s < a.sequences.size(); ++s) {
    const SequenceRows& seq = a.sequences[s];
    const std::vector<bf16> latents = decode_latents(pool, a.pages[s], latent, seq.start + seq.rows);
    // With the key rule broken, the tile depends on how many rows the step has.
    const int tile = rule_broken(Rule::kKey) && seq.rows > 1 ? kKeyTile / 2 : kKeyTile;
    pool.run(int64_t{seq.rows} * heads, [&](int64_t task) {
      const int64_t i = task / heads, row = seq.first_row + i, h = task % heads;
      const Head head{a.query + (row * heads + h) * latent, latent, rank, scale};
      Walk total;
      for (int lane = 0; lane < a.attention_lanes; ++lane) {
        Walk walk;
        std::vector<const bf16*> keys;
        int64_t boundary = segment;
        for (int64_t n = count(row, seq.start + i), j = 0; j < n; ++j) {
          const int64_t p = position(row, j);
          if (p >= boundary) {
            fold(walk, walk_keys(head, keys, tile));
            keys.clear();
            boundary = (p / segment + 1) * segment;
          }
          if (p / kChunk % a.attention_lanes == lane) keys.push_back(latents.data() + p * latent);
        }
        fold(walk, walk_keys(head, keys, tile));
        fold(total, std::move(walk));
      }
      for (int d = 0; d < rank; ++d)
        a.out[(row * heads + h) * rank + d] = float_to_bf16(total.z[d] / total.l);
    });
  }
}

}  // namespace

void PlainBackend::sparse_attend(const AttendArgs& a) {
  attend(
      pool_, a, std::numeric_limits<int64_t>::max() / 2,
      [&](int64_t row, int64_t) { return int64_t{a.count[row]}; },
      [&](int64_t row, int64_t j) { return int64_t{a.selected[row * a.top_k + j]}; });
}

void PlainBackend::dense_attend(const AttendArgs& a) {
  attend(
      pool_, a, a.dense_segment, [](int64_t, int64_t last) { return last + 1; },
      [](int64_t, int64_t j) { return j; });
}

}  // namespace perigee::cpu
