// What the property tests are told on their command line.
#pragma once

#include <string>

#include "engine/runner.h"

namespace perigee::test {

// The CPU kernels to run: a broken rule is broken in the plain code alone.
inline std::string g_cpu_kernels = "auto";
// Where to compute: "cpu" or "cuda".
inline std::string g_device = "cpu";
// More random traffic and longer sequences, for `make test-all`.
inline bool g_long = false;

// `options` on that device, with a small cache there: many runners live at once.
inline RunnerOptions on_device(RunnerOptions options) {
  options.device = g_device;
  options.cpu_kernels = g_cpu_kernels;
  if (g_device == "cuda" && options.cache_bytes == 0) options.cache_bytes = int64_t{256} << 20;
  return options;
}
// The cache of one sequence outside a pool, where the runner computes.
inline SequenceCache lone_cache(Runner& runner) {
  return SequenceCache(runner.cache_shape(), runner.memory(), 4096);
}

}  // namespace perigee::test
