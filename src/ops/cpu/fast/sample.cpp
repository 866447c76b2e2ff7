// sample: passes over the logits in vectors, noise eight blocks at a time, and a radix sort where top-k or
// top-p asks for an order.
#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

#include "ops/cpu/fast/backend.h"
#include "ops/cpu/fast/philox_words.h"
#include "ops/cpu/fast/scratch.h"
#include "ops/cpu/fast/sequence_kernels.h"
#include "ops/elementary.h"

namespace perigee::cpu {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kNoiseGroup = 32;  // tokens that eight blocks of noise serve

float largest(const SequenceKernels& kernels, const float* z, int64_t count) {
  const int64_t whole = count / 16 * 16;
  float top = whole ? kernels.largest(z, whole) : z[0];
  for (int64_t i = whole; i < count; ++i) top = top < z[i] ? z[i] : top;
  return top;
}

// Of the largest, the first; 0 when z[0] is NaN.
int32_t argmax(const SequenceKernels& kernels, const float* z, int64_t count) {
  const float top = largest(kernels, z, count);
  for (int64_t i = 0; i < count; ++i) {
    if (z[i] == top) return static_cast<int32_t>(i);
  }
  return 0;
}

// As in the plain code: blocks of the vocabulary, 16 partials (v mod 16) each, blocks by the lane tree.
float log_sum_exp(const SequenceKernels& kernels, const float* z, int vocab, int lanes) {
  const float top = largest(kernels, z, vocab);
  const int block = (vocab + lanes - 1) / lanes;
  float sums[kMaxLanes] = {};
  for (int lane = 0; lane < lanes; ++lane) {
    alignas(64) float acc[16] = {};
    int v = lane * block;
    const int end = std::min(vocab, v + block);
    for (; v < end && v % 16 != 0; ++v) acc[v % 16] += exp(z[v] - top);
    if (v + 16 <= end) {
      const int whole = (end - v) / 16 * 16;
      kernels.add_exp(z + v, whole, top, acc);
      v += whole;
    }
    for (; v < end; ++v) acc[v % 16] += exp(z[v] - top);
    for (int stride = 8; stride > 0; stride /= 2) {
      for (int l = 0; l < stride; ++l) acc[l] += acc[l + stride];
    }
    sums[lane] = acc[0];
  }
  return top + log(lane_tree(sums, lanes));
}

struct Ranked {
  uint32_t key;  // ascending where logits descend
  int32_t token;
};

// Tokens by (logit descending, id ascending). z holds neither NaN nor subnormals.
Ranked* rank(const float* z, int vocab, Arena& arena) {
  constexpr int kDigits = 3, kBits = 11;
  auto* from = arena.take<Ranked>(vocab);
  auto* to = arena.take<Ranked>(vocab);
  std::array<std::array<int32_t, 1 << kBits>, kDigits> start = {};
  for (int v = 0; v < vocab; ++v) {
    const uint32_t bits = std::bit_cast<uint32_t>(z[v] + 0.0f);  // −0 is 0
    from[v] = {.key = bits & 0x80000000u ? bits : ~bits & 0x7FFFFFFFu, .token = v};
    for (int d = 0; d < kDigits; ++d) ++start[d][from[v].key >> (d * kBits) & ((1 << kBits) - 1)];
  }
  for (int d = 0; d < kDigits; ++d) {
    int32_t next = 0;
    for (int32_t& s : start[d]) next += std::exchange(s, next);
    for (int v = 0; v < vocab; ++v) to[start[d][from[v].key >> (d * kBits) & ((1 << kBits) - 1)]++] = from[v];
    std::swap(from, to);
  }
  return from;
}

// Tokens that top-k and top-p drop become −inf.
void keep_top(float* z, int vocab, const SampleParams& p, Arena& arena) {
  for (int v = 0; v < vocab; ++v) z[v] = z[v] != z[v] ? -kInfinity : z[v];  // NaN has no place in an order
  const Ranked* order = rank(z, vocab, arena);
  int kept = p.top_k > 0 ? std::min(p.top_k, vocab) : vocab;
  if (p.top_p < 1.0f) {  // over what top-k keeps
    auto* e = arena.take<float>(kept);
    for (int i = 0; i < kept; ++i) e[i] = z[order[i].token] - z[order[0].token];
    for (int i = 0; i < kept; ++i) e[i] = exp(e[i]);
    float total = 0.0f, reached = 0.0f;
    for (int i = 0; i < kept; ++i) total += e[i];
    for (int i = 0; i < kept; ++i) {
      reached += e[i];
      if (reached >= p.top_p * total) kept = i + 1;
    }
  }
  for (int i = kept; i < vocab; ++i) z[order[i].token] = -kInfinity;
}

int32_t draw(const SequenceKernels& kernels, const float* logits, int vocab, const SampleParams& p,
             int64_t position, int lanes) {
  if (p.temperature < kGreedyTemperature) return argmax(kernels, logits, vocab);
  Arena& arena = thread_arena();
  const Arena::Scope scope(arena);
  const int64_t padded = (vocab + kNoiseGroup - 1) / kNoiseGroup * kNoiseGroup;
  auto* z = arena.take<float>(padded);
  for (int v = 0; v < vocab; ++v) z[v] = logits[v] / p.temperature;
  std::fill(z + vocab, z + padded, -kInfinity);
  if (p.top_k > 0 || p.top_p < 1.0f) keep_top(z, vocab, p, arena);
  const float norm = log_sum_exp(kernels, z, vocab, lanes);
  auto* words = arena.take<uint32_t>(padded);
  philox_words({.seed = p.seed, .stream = kSampleStream, .position = static_cast<uint64_t>(position)},
               padded / 4, words);
  kernels.add_gumbel(words, padded, norm, z);
  return argmax(kernels, z, vocab);
}

}  // namespace

void FastBackend::sample(const SampleArgs& a) {
  if (rule_broken(Rule::kRandom)) return PlainBackend::sample(a);
  const SequenceKernels& kernels = *kernels_.sequence;
  pool_.run(a.count, [&](int64_t r) {
    const SampleRow& row = a.rows[r];
    const float *raw = a.logits + r * a.vocab, *z = row.processed ? row.processed : raw;
    const int32_t token = draw(kernels, z, a.vocab, row.params, row.position, a.lanes);
    a.drawn[r] = {
        .token = token, .logit = raw[token], .log_norm = log_sum_exp(kernels, raw, a.vocab, a.lanes)};
  });
  keep_drawn_tokens(a);
}

}  // namespace perigee::cpu
