// What holds between devices, and what only a device puts at risk: with --device=cuda alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "properties/options.h"
#include "support/models.h"

namespace perigee {
namespace {

using test::lone_cache, test::Logits, test::on_device, test::plainly, test::random_tokens, test::small_runner;

constexpr int kTokens = 200;

RunnerOptions options() { return {.plan = {.dense_segment = 96}, .threads = 2}; }

class OnDevice : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (test::g_device == "cpu") GTEST_SKIP() << "with --device=cuda";
  }
  std::string family() const { return test::family_of(GetParam()); }
};

// Two identities: the same roundings to bf16, other orders of addition. Most rows differ as bf16 rounding
// makes them; those where a near-tie of a router or an index falls to the other side, and rows after them,
// differ more.
TEST_P(OnDevice, AgreesWithTheCpu) {
  Runner device = small_runner(family(), on_device(options())), cpu = small_runner(family(), options());
  const int vocab = cpu.config().vocab_size;
  const auto tokens = random_tokens(kTokens, 11, vocab);
  const Logits got = plainly(device, tokens), want = plainly(cpu, tokens);
  std::vector<double> relative;
  int same = 0;
  for (int t = 0; t < kTokens; ++t) {
    const float *g = &got[t * vocab], *w = &want[t * vocab];
    double error = 0, norm = 0;
    for (int v = 0; v < vocab; ++v) {
      error += std::pow(double{g[v]} - w[v], 2);
      norm += std::pow(double{w[v]}, 2);
    }
    relative.push_back(std::sqrt(error / norm));
    same += std::max_element(g, g + vocab) - g == std::max_element(w, w + vocab) - w;
  }
  std::printf("%s: relative L2 of the first rows:", family().c_str());
  for (int t = 0; t < 24; ++t) std::printf(" %.3f", relative[t]);
  std::sort(relative.begin(), relative.end());
  std::printf("; of all: least %.4f, quarter %.4f, median %.4f, most %.4f; greedy tokens equal %d of %d\n",
              relative.front(), relative[kTokens / 4], relative[kTokens / 2], relative.back(), same, kTokens);
  EXPECT_LT(relative[kTokens / 2], 0.04);
  EXPECT_GE(same, kTokens * 17 / 20);
}

TEST_P(OnDevice, AHundredRepeats) {
  Runner runner = small_runner(family(), on_device(options()));
  const auto tokens = random_tokens(kTokens, 12, runner.config().vocab_size);
  const Logits want = plainly(runner, tokens);
  for (int i = 0; i < 100; ++i) {
    const Logits got = plainly(runner, tokens);
    ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0) << "repeat " << i;
  }
}

// One sequence decodes beside up to 511 others.
TEST_P(OnDevice, BatchesUpTo512) {
  Runner runner = small_runner(family(), on_device(options()));
  const int vocab = runner.config().vocab_size;
  constexpr int kPrompt = 37, kSteps = 3;
  const auto tokens = random_tokens(kPrompt + kSteps, 13, vocab);
  const Logits want = plainly(runner, tokens);
  for (int mates : {1, 7, 15, 63, 127, 511}) {
    std::vector<SequenceCache> caches;
    for (int i = 0; i <= mates; ++i)
      caches.push_back(SequenceCache(runner.cache_shape(), runner.memory(), 256));
    Batch prompts;
    prompts.add(caches[0], std::span(tokens).first(kPrompt), 0, 1);
    for (int i = 1; i <= mates; ++i)
      prompts.add(caches[i], random_tokens(1 + i % 50, static_cast<uint64_t>(i), vocab), 0, 1);
    runner.compute(prompts);
    for (int step = 0; step < kSteps; ++step) {
      Batch batch;
      for (int i = 1; i <= mates; ++i)
        batch.add(caches[i], random_tokens(1, static_cast<uint64_t>(i), vocab), 0, 1);
      batch.add(caches[0], std::span(tokens).subspan(kPrompt + step, 1), 0, 1);
      const auto got = runner.step(batch);
      ASSERT_EQ(std::memcmp(got.data() + int64_t{mates} * vocab, &want[(kPrompt + step) * vocab],
                            sizeof(float) * vocab),
                0)
          << mates << " mates, step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, OnDevice, testing::Values("kimi_linear", "kimi_k3", "k31"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace perigee
