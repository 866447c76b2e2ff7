#include "engine/logprobs.h"

#include <algorithm>
#include <numeric>

#include "ops/cpu/distribution.h"

namespace perigee {

std::vector<std::pair<int32_t, float>> top_logprobs(std::span<const float> logits, float log_norm, int n) {
  std::vector<std::pair<int32_t, float>> top;
  n = std::min(n, static_cast<int>(logits.size()));
  if (n < 1) return top;
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + n, order.end(), [&](int32_t a, int32_t b) {
    const float x = logits[a], y = logits[b];
    if (x != x || y != y) return x == x || (y != y && a < b);
    return x != y ? x > y : a < b;
  });
  for (int i = 0; i < n; ++i) top.emplace_back(order[i], logits[order[i]] - log_norm);
  return top;
}

std::vector<float> processed_logprobs(std::span<const float> logits, const LogitsProcessor& processor,
                                      const SampleParams& params, int lanes) {
  std::vector<float> z(logits.begin(), logits.end());
  if (processor.active()) processor.apply(z, params.temperature);
  if (params.temperature >= kGreedyTemperature) cpu::keep_drawn(z, params);
  const float norm = cpu::log_sum_exp(z.data(), static_cast<int>(z.size()), lanes);
  for (float& x : z) x -= norm;
  return z;
}

}  // namespace perigee
