// The promise, by equality of bits: the logits at a position depend on the tokens before it alone. The plain
// path (one request, one chunk, no cache hit) is the oracle of every other way to compute the same tokens.
// Test builds fill fresh workspace, fresh pages and dropped rows with NaN, so a read of anything stale shows
// too.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "ops/cpu/fast/kernels.h"
#include "properties/options.h"
#include "support/models.h"

namespace perigee {
namespace {

using test::Logits, test::plainly, test::random_tokens, test::small_runner;

constexpr int kTokens = 331;  // several times top-k 64, chunk 16, page 64 and the test's dense segment 96

RunnerOptions options_with(int threads = 2, int lanes = 1, int attention_lanes = 1) {
  return test::on_device({.precision = {},
                          .plan = {.lanes = lanes, .attention_lanes = attention_lanes, .dense_segment = 96},
                          .threads = threads});
}

// `got` against what stands from offset `first` of `want`, bit by bit.
void expect_same(const Logits& want, int first, std::span<const float> got, const char* what) {
  ASSERT_LE(first + got.size(), want.size());
  ASSERT_EQ(std::memcmp(&want[first], got.data(), got.size_bytes()), 0)
      << what << ": bits differ from the plain path at logit offset " << first;
}

class OneSetOfBits : public testing::TestWithParam<std::string> {
 protected:
  std::string family() const { return test::family_of(GetParam()); }
};

TEST_P(OneSetOfBits, LogitsAreFinite) {
  Runner runner = small_runner(family(), options_with());
  for (float x : plainly(runner, random_tokens(kTokens, 1, runner.config().vocab_size)))
    ASSERT_TRUE(std::isfinite(x));
}

TEST_P(OneSetOfBits, AnySplitOfThePrompt) {
  Runner runner = small_runner(family(), options_with());
  const int vocab = runner.config().vocab_size;
  const auto tokens = random_tokens(kTokens, 2, vocab);
  const Logits want = plainly(runner, tokens);
  std::mt19937 random(3);
  for (int longest : {7, 40, 200}) {
    SequenceCache cache = test::lone_cache(runner);
    for (int at = 0; at < kTokens;) {
      const int n = std::min<int>(kTokens - at, 1 + random() % longest);
      Batch batch;
      batch.add(cache, std::span(tokens).subspan(at, n), 0, n);
      expect_same(want, at * vocab, runner.step(batch), "chunked prefill");
      at += n;
    }
  }
}

TEST_P(OneSetOfBits, TokenByToken) {
  Runner runner = small_runner(family(), options_with());
  const int vocab = runner.config().vocab_size, count = 100;
  const auto tokens = random_tokens(count, 4, vocab);
  const Logits want = plainly(runner, tokens);
  SequenceCache cache = test::lone_cache(runner);
  for (int at = 0; at < count; ++at) {
    Batch batch;
    batch.add(cache, std::span(tokens).subspan(at, 1), 0, 1);
    expect_same(want, at * vocab, runner.step(batch), "decode");
  }
}

TEST_P(OneSetOfBits, VerifyWidthsWithRejection) {
  Runner runner = small_runner(family(), options_with());
  const int vocab = runner.config().vocab_size, count = 100;
  const auto tokens = random_tokens(count, 5, vocab);
  const Logits want = plainly(runner, tokens);
  std::mt19937 random(6);
  for (int width = 1; width <= 8; ++width) {
    SequenceCache cache = test::lone_cache(runner);
    for (int at = 0; at < count;) {
      // One accepted token and width − 1 drafts, of which the first `right` are what comes next and the
      // others are wrong.
      const int rows = std::min(width, count - at), right = static_cast<int>(random() % rows);
      std::vector<int32_t> input(tokens.begin() + at, tokens.begin() + at + rows);
      for (int i = 1 + right; i < rows; ++i) input[i] = (input[i] + 1) % vocab;
      Batch batch;
      batch.add(cache, input, rows - 1, rows);
      const auto got = runner.step(batch);
      expect_same(want, at * vocab, got.subspan(0, (1 + right) * vocab), "verify");
      at += 1 + right;
      cache.set_length(at);
    }
  }
}

TEST_P(OneSetOfBits, BatchMatesAndOrder) {
  Runner runner = small_runner(family(), options_with());
  const int vocab = runner.config().vocab_size;
  constexpr int kMates = 4;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<Logits> want;
  for (int i = 0; i < kMates; ++i) {
    prompts.push_back(random_tokens(40 + 37 * i, 10 + i, vocab));
    want.push_back(plainly(runner, prompts[i]));
  }
  std::mt19937 random(7);
  for (int trial = 0; trial < 2; ++trial) {
    std::vector<SequenceCache> caches;
    for (int i = 0; i < kMates; ++i) caches.push_back(test::lone_cache(runner));
    std::vector<int> order(kMates);
    for (;;) {
      order.clear();
      for (int i = 0; i < kMates; ++i) {
        if (caches[i].length() < static_cast<int64_t>(prompts[i].size()) && random() % 4 != 0)
          order.push_back(i);
      }
      std::shuffle(order.begin(), order.end(), random);
      if (order.empty()) {
        bool done = true;
        for (int i = 0; i < kMates; ++i)
          done &= caches[i].length() == static_cast<int64_t>(prompts[i].size());
        if (done) break;
        continue;
      }
      Batch batch;
      std::vector<std::pair<int, int>> rows;  // mate, first position
      for (int i : order) {
        const int at = static_cast<int>(caches[i].length());
        const int n =
            std::min<int>(static_cast<int>(prompts[i].size()) - at, random() % 2 ? 1 : 1 + random() % 60);
        batch.add(caches[i], std::span(prompts[i]).subspan(at, n), 0, n);
        rows.emplace_back(i, at);
      }
      const auto got = runner.step(batch);
      int64_t row = 0;
      for (size_t s = 0; s < rows.size(); ++s) {
        const int64_t n = batch.sequences[s].rows;
        expect_same(want[rows[s].first], rows[s].second * vocab, got.subspan(row * vocab, n * vocab),
                    "mixed batch");
        row += n;
      }
    }
  }
}

TEST_P(OneSetOfBits, AnyNumberOfThreads) {
  Runner one = small_runner(family(), options_with(1)), five = small_runner(family(), options_with(5));
  const auto tokens = random_tokens(200, 8, one.config().vocab_size);
  expect_same(plainly(one, tokens), 0, plainly(five, tokens), "five threads");
}

TEST_P(OneSetOfBits, AnyKernels) {
  if (test::g_device != "cpu") GTEST_SKIP() << "kernels of the CPU";
  RunnerOptions options = options_with();
  options.cpu_kernels = "plain";
  Runner plain = small_runner(family(), options);
  const auto tokens = random_tokens(60, 12, plain.config().vocab_size);
  const Logits want = plainly(plain, tokens);
  for (const char* name : {"avx2", "avx512", "avx512-emulated"}) {
    if (!cpu::find_kernels(name)) continue;
    options.cpu_kernels = name;
    Runner fast = small_runner(family(), options);
    ASSERT_EQ(fast.kernels(), name);
    expect_same(want, 0, plainly(fast, tokens), name);
  }
}

TEST_P(OneSetOfBits, EveryCacheFormat) {
  for (LatentFormat latent : {LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kNvfp4}) {
    for (IndexKeyFormat index : {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kMxfp4}) {
      RunnerOptions options = options_with();
      options.precision = {.latent = latent, .index = index};
      Runner runner = small_runner(family(), options);
      const int vocab = runner.config().vocab_size, count = 90;
      const auto tokens = random_tokens(count, 9, vocab);
      const Logits want = plainly(runner, tokens);
      SequenceCache cache = test::lone_cache(runner);
      for (int at = 0; at < count;) {
        const int n = at == 64 ? 1 : std::min(count - at, 64);
        Batch batch;
        batch.add(cache, std::span(tokens).subspan(at, n), 0, n);
        expect_same(want, at * vocab, runner.step(batch), "chunked prefill");
        at += n;
      }
      if (!runner.config().dsa) break;  // no index keys: the formats are one
    }
  }
}

TEST_P(OneSetOfBits, LanesReproduceThemselves) {
  for (int lanes : {1, 2, 4, 8}) {
    for (bool expert : {false, true}) {
      RunnerOptions options = options_with(2, lanes, lanes);
      options.plan.moe_lanes_expert = expert;
      Runner runner = small_runner(family(), options);
      const int vocab = runner.config().vocab_size, count = 100;
      const auto tokens = random_tokens(count, 11, vocab);
      const Logits want = plainly(runner, tokens);
      SequenceCache cache = test::lone_cache(runner);
      for (int at = 0; at < count;) {
        const int n = at % 3 == 0 ? 1 : std::min(count - at, 33);
        Batch batch;
        batch.add(cache, std::span(tokens).subspan(at, n), 0, n);
        expect_same(want, at * vocab, runner.step(batch), "chunked prefill with lanes");
        at += n;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, OneSetOfBits, testing::Values("kimi_linear", "kimi_k3", "k31"),
                         [](const auto& info) { return info.param; });

// A model cut to fewer layers than any attention stands behind: KDA alone, no latents.
TEST(CutModel, KdaLayersAlone) {
  for (const char* family : {"kimi-linear", "kimi-k3", "k31"}) {
    const ModelConfig config =
        load_config(fmt::format("tests/data/configs/{}-small.json", family), {{"num_hidden_layers", "2"}});
    const LoadOptions dummy{.format = LoadFormat::kDummy, .seed = 7, .show_progress = false};
    Runner runner(config, load_weights("", config, dummy), options_with());
    const int vocab = config.vocab_size, count = 70;
    const auto tokens = random_tokens(count, 13, vocab);
    const Logits want = plainly(runner, tokens);
    SequenceCache cache = test::lone_cache(runner);
    for (int at = 0; at < count;) {
      const int n = std::min(count - at, at == 30 ? 1 : 15);
      Batch batch;
      batch.add(cache, std::span(tokens).subspan(at, n), 0, n);
      expect_same(want, at * vocab, runner.step(batch), family);
      at += n;
    }
  }
}

TEST(Sampling, TheSameTokensWhateverTheBatch) {
  Runner runner = small_runner("k31", options_with());
  const int vocab = runner.config().vocab_size;
  std::vector<SequenceCache> caches;
  Batch together;
  for (int i = 0; i < 4; ++i) caches.push_back(test::lone_cache(runner));
  std::vector<SampleParams> params;
  std::vector<int64_t> positions;
  std::vector<int32_t> alone;
  for (int i = 0; i < 4; ++i) {
    const auto prompt = random_tokens(20 + i, 20 + i, vocab);
    params.push_back(
        {.temperature = 1.5f, .top_p = i % 2 ? 0.9f : 1.0f, .top_k = i == 3 ? 50 : 0, .seed = 5});
    positions.push_back(static_cast<int64_t>(prompt.size()));
    SequenceCache cache = test::lone_cache(runner);
    Batch batch;
    batch.add(cache, prompt, 0, 1);
    runner.step(batch);
    alone.push_back(runner.sample(std::span(params).last(1), std::span(positions).last(1))[0].token);
    together.add(caches[i], prompt, 0, 1);
  }
  runner.step(together);
  const auto sampled = runner.sample(params, positions);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(sampled[i].token, alone[i]) << "row " << i;
}

}  // namespace
}  // namespace perigee
