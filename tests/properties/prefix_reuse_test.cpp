// The promise with prefix reuse: whatever was found in the tree, at whatever kind of point, the logits of the
// tokens after it are those of one pass over everything.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "cache/cached_sequence.h"
#include "properties/options.h"
#include "support/models.h"

namespace perigee {
namespace {

using test::Logits, test::on_device, test::random_tokens, test::small_config;

using Tokens = std::vector<int32_t>;

class PrefixReuse : public testing::TestWithParam<std::string> {
 protected:
  PrefixReuse() {
    const ModelConfig config = small_config(test::family_of(GetParam()));
    RunnerOptions options =
        on_device({.precision = {.latent = LatentFormat::kFp8}, .plan = {.dense_segment = 96}, .threads = 2});
    // A pool of a few sequences, so that eviction takes part.
    const CacheShape shape = cache_shape(config, options.precision.latent, options.precision.index);
    const CachePlan plan(cache_kinds(shape));
    options.cache_rows = 8 * plan.state_rows() + 6;
    runner_ = std::make_unique<Runner>(
        config, load_weights("", config, {.format = LoadFormat::kDummy, .seed = 7, .show_progress = false}),
        options);
    tree_ = std::make_unique<PrefixTree>(
        runner_->pool(), PrefixTreeOptions{.checkpoint_share = 0.7, .checkpoint_spacing = 64, .debug = true});
    vocab_ = config.vocab_size;
  }

  // One pass, no pool, no tree.
  const Logits& plainly(const Tokens& tokens) {
    Logits& logits = plain_[tokens];
    if (logits.empty()) logits = test::plainly(*runner_, tokens);
    return logits;
  }

  void expect_same(const Tokens& tokens, int64_t first, std::span<const float> got, const char* what) {
    const Logits& want = plainly(tokens);
    ASSERT_LE(first * vocab_ + static_cast<int64_t>(got.size()), static_cast<int64_t>(want.size()));
    ASSERT_EQ(std::memcmp(&want[first * vocab_], got.data(), got.size_bytes()), 0)
        << what << ": bits differ from one pass, from position " << first;
  }

  // Computes all of `tokens` as the scheduler would a prompt, checks every logit, and leaves everything.
  // Returns what was cached.
  int64_t request(const Tokens& tokens, int64_t budget) {
    const Logits want = plainly(tokens);  // before the step: its logits live in the runner
    CachedSequence s(runner_->pool(), tree_.get(), {}, tokens);
    while (s.prefilling()) {
      const int64_t at = s.cache().length();
      const CachedSequence::PromptStep step = s.next_prompt_step(budget);
      EXPECT_TRUE(s.make_room(step.count, step.undecided));
      Batch batch;
      batch.add(s.cache(), std::span(tokens).subspan(at, step.count), static_cast<int>(step.undecided),
                static_cast<int>(step.count));
      const auto got = runner_->step(batch);
      EXPECT_EQ(std::memcmp(&want[at * vocab_], got.data(), got.size_bytes()), 0)
          << s.cached_tokens() << " cached, from position " << at;
      s.stepped();
    }
    s.leave();
    std::vector<int64_t> references(runner_->pool().rows(), 0);
    tree_->check_integrity(references);
    s.cache().count_references(references);
    runner_->pool().check_integrity(references);
    return s.cached_tokens();
  }

  std::unique_ptr<Runner> runner_;
  std::unique_ptr<PrefixTree> tree_;
  std::map<Tokens, Logits> plain_;
  int64_t vocab_ = 0;
};

// Every length around a chunk, a page and a block; each asked twice, so that the second starts at the
// prompt's checkpoint.
TEST_P(PrefixReuse, AnExactRepeat) {
  const Tokens tokens = random_tokens(140, 1, static_cast<int>(vocab_));
  for (int64_t length : {1, 15, 16, 17, 63, 64, 65, 127, 128, 129}) {
    const Tokens prompt(tokens.begin(), tokens.begin() + length);
    tree_->clear();
    EXPECT_EQ(request(prompt, 1000), 0);
    EXPECT_EQ(request(prompt, 1000), (length - 1) / 16 * 16);
  }
}

// Conversations that share, branch, repeat and go on, in chunks of any size, in a pool that forgets some of
// them.
TEST_P(PrefixReuse, RandomConversations) {
  std::mt19937 random(3);
  std::vector<Tokens> histories = {{}};
  int64_t cached = 0;
  for (int i = 0; i < 24; ++i) {
    Tokens tokens = histories[random() % histories.size()];
    if (random() % 2 && !tokens.empty()) tokens.resize(random() % tokens.size());
    const Tokens more =
        random_tokens(1 + static_cast<int>(random() % 70), 100 + i % 5, static_cast<int>(vocab_));
    tokens.insert(tokens.end(), more.begin(), more.end());
    if (tokens.size() > 160) tokens.resize(160);
    cached += request(tokens, 1 + static_cast<int64_t>(random() % 90));
    histories.push_back(tokens);
  }
  EXPECT_GT(cached, 300);  // hits took part
}

// Preempted at any point and taken up again, with all it had so far as its prompt.
TEST_P(PrefixReuse, PreemptedAndResumed) {
  const Tokens tokens = random_tokens(110, 5, static_cast<int>(vocab_));
  const Logits want = plainly(tokens);
  std::mt19937 random(6);
  int64_t done = 0;
  while (done < 110) {
    CachedSequence s(runner_->pool(), tree_.get(), {},
                     {tokens.begin(), tokens.begin() + std::min<int64_t>(110, done + 33)});
    EXPECT_GE(s.cached_tokens(), done - 15);
    for (int steps = 0; steps < 2 && s.prefilling(); ++steps) {
      const int64_t at = s.cache().length();
      const CachedSequence::PromptStep step = s.next_prompt_step(1 + static_cast<int64_t>(random() % 20));
      ASSERT_TRUE(s.make_room(step.count, step.undecided));
      Batch batch;
      batch.add(s.cache(), std::span(tokens).subspan(at, step.count), static_cast<int>(step.undecided),
                static_cast<int>(step.count));
      const auto got = runner_->step(batch);
      ASSERT_EQ(std::memcmp(&want[at * vocab_], got.data(), got.size_bytes()), 0) << "from position " << at;
      s.stepped();
    }
    s.leave();
    done = std::max(done, s.cache().length());
  }
}

// n > 1: the branches share the prompt's rows and part.
TEST_P(PrefixReuse, Forks) {
  const Tokens prompt = random_tokens(75, 7, static_cast<int>(vocab_));
  SequenceCache cache(runner_->pool());
  Batch first;
  first.add(cache, prompt, 0, 1);
  runner_->step(first);
  std::vector<SequenceCache> branches;
  for (int i = 0; i < 3; ++i) branches.push_back(cache.fork());
  branches.push_back(std::move(cache));
  std::vector<Tokens> tokens;
  for (int i = 0; i < 4; ++i) {
    tokens.push_back(prompt);
    const Tokens more = random_tokens(30, 80 + i, static_cast<int>(vocab_));
    tokens[i].insert(tokens[i].end(), more.begin(), more.end());
    plainly(tokens[i]);
  }
  for (int at = 75; at < 105; at += 6) {
    Batch batch;
    for (int i = 0; i < 4; ++i) batch.add(branches[i], std::span(tokens[i]).subspan(at, 6), 0, 6);
    const auto logits = runner_->step(batch);
    const std::vector<float> got(logits.begin(), logits.end());
    for (int i = 0; i < 4; ++i)
      expect_same(tokens[i], at, std::span(got).subspan(i * 6 * vocab_, 6 * vocab_), "fork");
  }
}

INSTANTIATE_TEST_SUITE_P(, PrefixReuse, testing::Values("kimi_linear", "kimi_k3", "k31"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace perigee
