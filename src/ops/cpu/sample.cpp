// sample: one token per logit row, as a function of (logits, parameters, seed, position) alone.
#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "base/philox.h"
#include "ops/break_rule.h"
#include "ops/cpu/backend.h"
#include "ops/cpu/distribution.h"
#include "ops/elementary.h"

namespace perigee::cpu {

float log_sum_exp(const float* z, int vocab, int lanes) {
  const float top = *std::max_element(z, z + vocab);
  const int block = (vocab + lanes - 1) / lanes;
  float sums[kMaxLanes] = {};
  for (int lane = 0; lane < lanes; ++lane) {
    float acc[16] = {};
    for (int v = lane * block; v < std::min(vocab, (lane + 1) * block); ++v) acc[v % 16] += exp(z[v] - top);
    for (int stride = 8; stride > 0; stride /= 2) {
      for (int l = 0; l < stride; ++l) acc[l] += acc[l + stride];
    }
    sums[lane] = acc[0];
  }
  return top + log(lane_tree(sums, lanes));
}

void keep_drawn(std::vector<float>& z, const SampleParams& p) {
  const int vocab = static_cast<int>(z.size());
  for (float& x : z) x /= p.temperature;
  if (p.top_k > 0 || p.top_p < 1.0f) {
    std::vector<int32_t> order(vocab);
    std::iota(order.begin(), order.end(), 0);
    for (float& x : z) {
      if (x != x) x = -std::numeric_limits<float>::infinity();  // NaN has no place in an order
    }
    std::sort(order.begin(), order.end(),
              [&](int32_t a, int32_t b) { return z[a] != z[b] ? z[a] > z[b] : a < b; });
    int kept = p.top_k > 0 ? std::min(p.top_k, vocab) : vocab;
    if (p.top_p < 1.0f) {  // over what top-k keeps
      float total = 0.0f, reached = 0.0f;
      for (int i = 0; i < kept; ++i) total += exp(z[order[i]] - z[order[0]]);
      for (int i = 0; i < kept; ++i) {
        reached += exp(z[order[i]] - z[order[0]]);
        if (reached >= p.top_p * total) kept = i + 1;
      }
    }
    for (int i = kept; i < vocab; ++i) z[order[i]] = -std::numeric_limits<float>::infinity();
  }
}

namespace {

int32_t argmax(const std::vector<float>& x) {
  return static_cast<int32_t>(std::max_element(x.begin(), x.end()) -
                              x.begin());  // the first, so the lowest id
}

int32_t draw(std::vector<float> z, const SampleParams& p, int64_t position, int lanes) {
  const int vocab = static_cast<int>(z.size());
  if (p.temperature < kGreedyTemperature) return argmax(z);
  keep_drawn(z, p);
  const float norm = log_sum_exp(z.data(), vocab, lanes);
  for (int v = 0; v < vocab; v += 4) {
    const Philox4 words =
        random_words(p.seed, kSampleStream, static_cast<uint64_t>(position), static_cast<uint32_t>(v / 4));
    for (int i = 0; i < std::min(4, vocab - v); ++i) {
      z[v + i] = (z[v + i] - norm) - log(-log(uniform_open(words[i])));
    }
  }
  return argmax(z);
}

}  // namespace

void PlainBackend::keep_drawn_tokens(const SampleArgs& a) {
  drawn_.resize(a.count);
  for (int r = 0; r < a.count; ++r) drawn_[r] = a.drawn[r].token;
}

void PlainBackend::sample(const SampleArgs& a) {
  pool_.run(a.count, [&](int64_t r) {
    const SampleRow& row = a.rows[r];
    const float *raw = a.logits + r * a.vocab, *z = row.processed ? row.processed : raw;
    // With the random rule broken, the noise is keyed by the row of the batch.
    const int64_t position = rule_broken(Rule::kRandom) ? r : row.position;
    const int32_t token = draw(std::vector<float>(z, z + a.vocab), row.params, position, a.lanes);
    a.drawn[r] = {.token = token, .logit = raw[token], .log_norm = log_sum_exp(raw, a.vocab, a.lanes)};
  });
  keep_drawn_tokens(a);
}

}  // namespace perigee::cpu
