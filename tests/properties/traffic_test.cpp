// One set of bits under traffic: whatever an engine with everything on goes through, every answer is that of
// its request alone with everything off.
#include "properties/traffic.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "engine/generate.h"
#include "properties/options.h"
#include "support/models.h"

namespace perigee::test {
namespace {

class Traffic : public testing::TestWithParam<std::string> {
 protected:
  Traffic() {
    family_ = family_of(GetParam());
    plain_ = std::make_unique<Runner>(runner(0, 8));
    vocab_ = plain_->config().vocab_size;
  }

  // 0 rows: as many as the machine has room for.
  Runner runner(int64_t rows, int64_t slots) const {
    const ModelConfig config = small_config(family_);
    RunnerOptions options = on_device({.precision = {.latent = LatentFormat::kFp8},
                                       .plan = {.dense_segment = 96},
                                       .threads = 2,
                                       .sequences = slots});
    const CacheShape shape = cache_shape(config, options.precision.latent, options.precision.index);
    const CachePlan plan(cache_kinds(shape));
    if (rows > 0) options.cache_rows = CachedSequence::most_rows(plan, 160) + rows;
    Weights weights =
        load_weights("", config, {.format = LoadFormat::kDummy, .seed = 7, .show_progress = false});
    std::fill_n(const_cast<bf16*>(weights.embedding) + int64_t{kDamagedToken} * config.hidden_size,
                config.hidden_size, float_to_bf16(NAN));
    return Runner(config, std::move(weights), options);
  }

  struct Answer {
    std::vector<GeneratedToken> tokens, prompt_tokens;
    FinishReason finish = FinishReason::kNone;
    std::string error;
  };

  // One request at a time, one token a step after a prompt in one step, nothing reused.
  const Answer& alone(Request r, int branch) {
    r.sampling.seed += static_cast<uint64_t>(branch);
    r.n = 1;
    r.priority = 0;
    r.salt.clear();
    if (branch > 0) r.prompt_logprobs = -1;
    for (auto& [request, answer] : alone_) {
      if (request_equal(request, r)) return answer;
    }
    Generation g =
        generate(*plain_, {r},
                 {.scheduler = {.max_num_seqs = 1, .max_num_batched_tokens = 1000, .look_ahead = false}})[0];
    alone_.emplace_back(r, Answer{g.tokens, g.prompt_tokens, g.finish, g.error});
    return alone_.back().second;
  }

  static bool request_equal(const Request& a, const Request& b) {
    return a.prompt == b.prompt && a.sampling.seed == b.sampling.seed && a.max_tokens == b.max_tokens &&
           a.sampling.temperature == b.sampling.temperature && a.sampling.top_p == b.sampling.top_p &&
           a.sampling.top_k == b.sampling.top_k && a.stop_ids == b.stop_ids &&
           a.top_logprobs == b.top_logprobs && a.prompt_logprobs == b.prompt_logprobs &&
           a.logits.min_p == b.logits.min_p && a.logits.repetition_penalty == b.logits.repetition_penalty;
  }

  static std::string difference(std::span<const GeneratedToken> got, std::span<const GeneratedToken> want) {
    if (got.size() > want.size()) return fmt::format("{} tokens, alone {}", got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      if (got[i].id != want[i].id) return fmt::format("token {} is {}, alone {}", i, got[i].id, want[i].id);
      // Any NaN is as good as another.
      const auto same = [](float a, float b) {
        return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
      };
      const bool same_top = std::equal(
          got[i].top.begin(), got[i].top.end(), want[i].top.begin(), want[i].top.end(),
          [&](const auto& a, const auto& b) { return a.first == b.first && same(a.second, b.second); });
      if (!same(got[i].logprob, want[i].logprob) || !same_top)
        return fmt::format("the log-probability of token {} is {}, alone {}", i, got[i].logprob,
                           want[i].logprob);
    }
    return "";
  }

  // Runs a script to its end; what went wrong, or nothing.
  std::string run(const TrafficScript& script) {
    Runner busy = runner(1 + script.spare_rows, script.slots);
    std::unique_ptr<RowStore> store;
    if (script.memory_rows + script.file_rows > 0) {
      const int64_t row_bytes = busy.pool().plan().row_bytes();
      RowStoreOptions tiers{.memory_bytes = script.memory_rows * row_bytes,
                            .file_bytes = script.file_rows * row_bytes};
      if (script.file_rows > 0) tiers.file = fmt::format("{}/traffic-{}", testing::TempDir(), getpid());
      store = std::make_unique<RowStore>(busy.pool(), tiers);
    }
    PrefixTree tree(busy.pool(), script.tree, store.get());
    std::vector<std::vector<int32_t>> known;
    EngineOptions options{.scheduler = script.scheduler};
    if (options.scheduler.max_drafts > 0)
      options.scheduler.drafter = random_drafter(script.seed, vocab_, known);
    Engine engine(busy, &tree, options);
    std::vector<std::pair<RequestId, Request>> submitted;
    std::map<std::pair<RequestId, int>, Answer> heard;
    std::string wrong;
    const auto listen = [&] {
      for (Event& e : engine.take_events()) {
        Answer& a = heard[{e.request, e.branch}];
        if (a.finish != FinishReason::kNone) wrong = "news after the last event";
        for (auto& t : e.tokens) a.tokens.push_back(t);
        for (auto& t : e.prompt_tokens) a.prompt_tokens.push_back(t);
        a.finish = e.finish;
        a.error = e.error;
      }
    };
    const auto step = [&] {
      const bool stepped = engine.step();
      listen();
      steps_ += stepped;
      return stepped;
    };
    for (const TrafficAction& a : script.actions) {
      if (a.kind == TrafficAction::Kind::kSubmit) {
        const Answer& want = alone(a.request, 0);
        known.push_back(a.request.prompt);
        for (const GeneratedToken& t : want.tokens) known.back().push_back(t.id);
        submitted.emplace_back(engine.submit(a.request), a.request);
      } else if (a.kind == TrafficAction::Kind::kCancel && a.target < static_cast<int>(submitted.size())) {
        engine.cancel(submitted[a.target].first, a.branch);
      } else {
        for (int i = 0; i < a.count; ++i) step();
      }
    }
    for (int left = 5000; step();) {
      if (--left == 0) return "does not come to an end";
    }
    const Engine::Stats stats = engine.stats();
    preemptions_ += stats.preemptions;
    cached_tokens_ += stats.cached_tokens;
    accepted_ += stats.accepted_draft_tokens;
    steps_ahead_ += stats.steps_ahead;
    dropped_ += stats.dropped_tokens;
    if (store) stored_rows_ += store->rows() - store->free_rows();
    for (const auto& [id, request] : submitted) {
      for (int branch = 0; branch < request.n && wrong.empty(); ++branch) {
        const Answer& got = heard[{id, branch}];
        const Answer& want = alone(request, branch);
        wrong = difference(got.tokens, want.tokens);
        // Branch 0's task passes to another when it is cancelled.
        if (wrong.empty() && branch == 0) wrong = difference(got.prompt_tokens, want.prompt_tokens);
        if (wrong.empty() && got.finish != FinishReason::kCancelled &&
            (got.finish != want.finish || got.tokens.size() != want.tokens.size()))
          wrong = fmt::format("ends as \"{}\" ({}) after {} tokens, alone as \"{}\" after {}",
                              to_string(got.finish), got.error, got.tokens.size(), to_string(want.finish),
                              want.tokens.size());
        damaged_ += got.finish == FinishReason::kError;
        if (!wrong.empty()) wrong = fmt::format("request {} branch {}: {}", id - 1, branch, wrong);
      }
    }
    if (wrong.empty() && busy.pool().free_slots() != busy.pool().slots()) wrong = "a slot is lost";
    tree.clear();
    tree.wait();
    if (wrong.empty() && busy.pool().free_rows() != busy.pool().rows()) wrong = "a row is lost";
    return wrong;
  }

  std::string run_caught(const TrafficScript& script) {
    try {
      return run(script);
    } catch (const Error& e) {
      return std::string("an exception: ") + e.what();
    }
  }

  std::string family_;
  std::unique_ptr<Runner> plain_;
  int vocab_ = 0;
  std::vector<std::pair<Request, Answer>> alone_;
  void expect_nothing_wrong(const TrafficScript& script) {
    const std::string wrong = run_caught(script);
    if (wrong.empty()) return;
    const TrafficScript least =
        shrink(script, [&](const TrafficScript& s) { return !run_caught(s).empty(); });
    FAIL() << wrong << "\nThe shortest script found that fails:\n" << to_string(least) << run_caught(least);
  }

  int64_t steps_ = 0, preemptions_ = 0, cached_tokens_ = 0, accepted_ = 0, damaged_ = 0, stored_rows_ = 0,
          steps_ahead_ = 0, dropped_ = 0;
};

TEST_P(Traffic, EverythingOnIsEverythingOff) {
  const int seeds = g_long ? 100 : 3;
  for (int seed = 1; seed <= seeds && !HasFatalFailure(); ++seed)
    expect_nothing_wrong(random_traffic(seed, 40, vocab_));
  // The machinery took part.
  EXPECT_GT(steps_, 100 * seeds);
  EXPECT_GT(preemptions_, 0);
  EXPECT_GT(cached_tokens_, 100);
  EXPECT_GT(accepted_, 10);
  EXPECT_GT(damaged_, 0);
  EXPECT_GT(stored_rows_, 0);
  std::printf("%s: %ld steps, %ld preemptions, %ld tokens cached, %ld drafts accepted, %ld answers of NaN\n",
              family_.c_str(), steps_, preemptions_, cached_tokens_, accepted_, damaged_);
}

// Steps that begin before the tokens of the one before are known. Traffic for which that is often possible:
// no drafts, seldom a processor; many answers end by a token that nobody foresaw.
TEST_P(Traffic, LookingAheadIsWaiting) {
  const int seeds = g_long ? 100 : 4;
  for (int seed = 1; seed <= seeds && !HasFatalFailure(); ++seed) {
    TrafficScript script = random_traffic(1000 + seed, 40, vocab_);
    script.scheduler.look_ahead = true;
    script.scheduler.max_drafts = 0;
    int number = 0;
    for (TrafficAction& a : script.actions) {
      if (a.kind == TrafficAction::Kind::kSubmit && ++number % 8 != 0) a.request.logits = {};
      a.request.max_tokens += 20;
      if (number % 2) a.request.stop_ids = random_tokens(vocab_ / 16, static_cast<uint64_t>(seed), vocab_);
      a.request.prompt.resize(std::min<size_t>(a.request.prompt.size(), 100));
    }
    expect_nothing_wrong(script);
  }
  EXPECT_GT(steps_ahead_, 30 * seeds);
  EXPECT_GT(dropped_, seeds);
  std::printf("%s: %ld steps, %ld of them ahead, %ld tokens dropped\n", family_.c_str(), steps_, steps_ahead_,
              dropped_);
}

INSTANTIATE_TEST_SUITE_P(Families, Traffic, testing::Values("kimi_linear", "kimi_k3", "k31"),
                         [](const auto& info) { return info.param; });

// The shrinker finds the two actions that matter.
TEST(Shrink, LeavesWhatFails) {
  const TrafficScript script = random_traffic(5, 60, 512);
  const auto fails = [](const TrafficScript& s) {
    int many_steps = 0;
    bool branches = false;
    for (const TrafficAction& a : s.actions) {
      many_steps += a.kind == TrafficAction::Kind::kStep && a.count > 6;
      branches |= a.kind == TrafficAction::Kind::kSubmit && a.request.n > 1;
    }
    return many_steps > 0 && branches;
  };
  ASSERT_TRUE(fails(script));
  EXPECT_EQ(shrink(script, fails).actions.size(), 2u);
}

}  // namespace
}  // namespace perigee::test
