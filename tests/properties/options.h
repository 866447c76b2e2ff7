// What the property tests are told on their command line.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "engine/runner.h"

namespace perigee::test {

// The CPU kernels to run: a broken rule is broken in the plain code alone.
inline std::string g_cpu_kernels = "auto";
// Where to compute: "cpu" or "cuda".
inline std::string g_device = "cpu";
// More random traffic and longer sequences, for `make test-all`.
inline bool g_long = false;
// How long the overload runs; 0: a few rounds.
inline double g_overload_seconds = 0;

// `options` on that device, with a small cache there: many runners live at once.
inline RunnerOptions on_device(RunnerOptions options) {
  options.device = g_device;
  options.cpu_kernels = g_cpu_kernels;
  if (g_device == "cuda" && options.cache_bytes == 0) options.cache_bytes = int64_t{256} << 20;
  return options;
}
// A family's name from that of a test, which cannot hold a dash.
inline std::string family_of(std::string parameter) {
  std::replace(parameter.begin(), parameter.end(), '_', '-');
  return parameter;
}

// The cache of one sequence outside a pool, where the runner computes.
inline SequenceCache lone_cache(Runner& runner) {
  return SequenceCache(runner.cache_shape(), runner.memory(), 4096);
}

using Logits = std::vector<float>;  // [tokens, vocab]

// One request, everything in one step: the oracle of every other way.
inline Logits plainly(Runner& runner, const std::vector<int32_t>& tokens) {
  SequenceCache cache = lone_cache(runner);
  Batch batch;
  batch.add(cache, tokens, 0, static_cast<int>(tokens.size()));
  const auto logits = runner.step(batch);
  return {logits.begin(), logits.end()};
}

}  // namespace perigee::test
