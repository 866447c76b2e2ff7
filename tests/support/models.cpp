#include "support/models.h"

#include <random>

namespace perigee::test {

ModelConfig small_config(const std::string& family) {
  return load_config("tests/data/configs/" + family + "-small.json");
}

Runner small_runner(const std::string& family, const RunnerOptions& options) {
  const ModelConfig config = small_config(family);
  return Runner(config,
                load_weights("", config, {.format = LoadFormat::kDummy, .seed = 7, .show_progress = false}),
                options);
}

std::vector<int32_t> random_tokens(int count, uint64_t seed, int vocab) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random() % vocab);
  return tokens;
}

}  // namespace perigee::test
