// A small engine for tests: requests, a listener to its events, and a runner to compare with.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "engine/engine.h"
#include "engine/generate.h"
#include "support/models.h"

namespace perigee::test {

constexpr int kVocab = 512;

inline Request request(int prompt, uint64_t seed, int max_tokens = 8) {
  return {.prompt = random_tokens(prompt, seed, kVocab),
          .sampling = {.temperature = 1.0f, .seed = seed},
          .max_tokens = max_tokens};
}

using Branch = std::pair<RequestId, int>;
struct Heard {
  std::vector<GeneratedToken> tokens, prompt_tokens;
  FinishReason finish = FinishReason::kNone;
  std::string error;
  int64_t cached_tokens = 0;
};

class Listener {
 public:
  void listen(Engine& engine) {
    for (Event& e : engine.take_events()) {
      Heard& h = heard_[{e.request, e.branch}];
      EXPECT_EQ(h.finish, FinishReason::kNone) << "news after the last event";
      for (auto& t : e.tokens) h.tokens.push_back(t);
      for (auto& t : e.prompt_tokens) h.prompt_tokens.push_back(t);
      h.finish = e.finish;
      h.error = e.error;
      h.cached_tokens = e.cached_tokens;
      if (e.finish != FinishReason::kNone) order_.push_back({e.request, e.branch});
    }
  }
  void run(Engine& engine) {
    listen(engine);
    while (engine.step()) listen(engine);
  }
  const Heard& operator[](Branch b) const { return heard_.at(b); }
  const Heard& operator[](RequestId id) const { return heard_.at({id, 0}); }
  const std::map<Branch, Heard>& all() const { return heard_; }
  const std::vector<Branch>& finished() const { return order_; }  // in order

 private:
  std::map<Branch, Heard> heard_;
  std::vector<Branch> order_;
};

inline void expect_same(std::span<const GeneratedToken> a, std::span<const GeneratedToken> b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].id, b[i].id) << "token " << i;
    EXPECT_EQ(std::memcmp(&a[i].logprob, &b[i].logprob, sizeof(float)), 0) << "token " << i;
    EXPECT_EQ(a[i].top, b[i].top) << "token " << i;
  }
}

class EngineTest : public testing::Test {
 protected:
  // With room for `tokens` tokens of one sequence and `more` rows.
  static Runner runner_for(int64_t tokens, int64_t more, int64_t sequences = 256,
                           int64_t block_tokens = 256) {
    const ModelConfig config = test::small_config("k31");
    const CacheShape shape = cache_shape(config, LatentFormat::kBf16, IndexKeyFormat::kFp8);
    const CachePlan plan(cache_kinds(shape), {.block_tokens = block_tokens});
    return Runner(config,
                  load_weights("", config, {.format = LoadFormat::kDummy, .seed = 7, .show_progress = false}),
                  {.threads = 2,
                   .cache_rows = CachedSequence::most_rows(plan, tokens) + more,
                   .sequences = sequences,
                   .block_tokens = block_tokens});
  }
  Generation alone(const Request& r) { return generate(runner_, {r})[0]; }

  Runner runner_ = test::small_runner("k31", {.threads = 2});
};

}  // namespace perigee::test
