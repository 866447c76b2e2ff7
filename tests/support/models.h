// Seeded models of the three families for tests: the small configs of tests/data/configs with dummy weights.
#pragma once

#include <string>
#include <vector>

#include "engine/runner.h"

namespace perigee::test {

// "kimi-linear", "kimi-k3" or "k31".
ModelConfig small_config(const std::string& family);
Runner small_runner(const std::string& family, const RunnerOptions& options = {.threads = 2});

// Random token ids of the small vocabulary, a function of the seed.
std::vector<int32_t> random_tokens(int count, uint64_t seed, int vocab);

}  // namespace perigee::test
