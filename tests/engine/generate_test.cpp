// generate(): what one request gets, alone or in company, and how it ends.
#include "engine/generate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "cache/cached_sequence.h"
#include "support/models.h"

namespace perigee {
namespace {

using test::random_tokens;

Request request(int prompt, uint64_t seed, const SampleParams& sampling, int max_tokens = 12) {
  return {.prompt = random_tokens(prompt, seed, 512),
          .sampling = sampling,
          .max_tokens = max_tokens,
          .stop_ids = {}};
}

void expect_same(const Generation& a, const Generation& b) {
  EXPECT_EQ(a.finish, b.finish);
  ASSERT_EQ(a.tokens.size(), b.tokens.size());
  for (size_t i = 0; i < a.tokens.size(); ++i) {
    EXPECT_EQ(a.tokens[i].id, b.tokens[i].id) << "token " << i;
    EXPECT_EQ(std::memcmp(&a.tokens[i].logprob, &b.tokens[i].logprob, sizeof(float)), 0) << "token " << i;
  }
}

// The message of the error that running the request gives.
std::string error_of(Runner& runner, const Request& r, const GenerateOptions& options = {}) {
  try {
    generate(runner, {r}, options);
  } catch (const Error& e) {
    EXPECT_TRUE(e.code() == ErrorCode::kBadRequest || e.code() == ErrorCode::kUsage);
    return e.what();
  }
  return "no error";
}

GenerateOptions limits(int max_num_seqs, int max_num_batched_tokens) {
  GenerateOptions options;
  options.scheduler.max_num_seqs = max_num_seqs;
  options.scheduler.max_num_batched_tokens = max_num_batched_tokens;
  return options;
}

class Generate : public testing::Test {
 protected:
  Runner runner_ = test::small_runner("k31", {.precision = {}, .plan = {}, .threads = 2});
};

TEST_F(Generate, BatchIsAlone) {
  std::vector<Request> requests;
  for (int i = 0; i < 5; ++i) {
    requests.push_back(request(
        3 + 29 * i, i, {.temperature = i == 0 ? 0.0f : 1.0f, .top_p = 0.95f, .seed = 7u + i}, 5 + 3 * i));
  }
  std::vector<Generation> alone;
  for (const Request& r : requests) alone.push_back(generate(runner_, {r})[0]);
  for (const GenerateOptions& options : {GenerateOptions{}, limits(2, 17), limits(5, 40)}) {
    const std::vector<Generation> together = generate(runner_, requests, options);
    for (size_t i = 0; i < requests.size(); ++i) expect_same(together[i], alone[i]);
  }
}

TEST_F(Generate, StopsAtAStopIdAndKeepsIt) {
  Request r = request(20, 1, {.temperature = 0}, 10);
  const Generation free = generate(runner_, {r})[0];
  EXPECT_EQ(free.finish, FinishReason::kLength);
  ASSERT_EQ(free.tokens.size(), 10u);
  // Stop at the token that first appears as late as possible.
  std::set<int32_t> seen;
  size_t stop = 0;
  for (size_t i = 0; i < free.tokens.size(); ++i) {
    if (seen.insert(free.tokens[i].id).second) stop = i;
  }
  r.stop_ids = {-1, free.tokens[stop].id};
  const Generation stopped = generate(runner_, {r})[0];
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  ASSERT_EQ(stopped.tokens.size(), stop + 1);
  EXPECT_EQ(stopped.tokens.back().id, free.tokens[stop].id);
}

TEST_F(Generate, MaxTokens) {
  for (int n : {1, 2, 7}) {
    const Generation g = generate(runner_, {request(9, 2, {.seed = 3}, n)})[0];
    EXPECT_EQ(static_cast<int>(g.tokens.size()), n);
    EXPECT_EQ(g.finish, FinishReason::kLength);
  }
}

TEST_F(Generate, CancellingOneLeavesTheOthersAlone) {
  const std::vector<Request> requests = {request(10, 3, {.seed = 1}), request(11, 4, {.seed = 2}),
                                         request(12, 5, {.seed = 3})};
  const std::vector<Generation> free = generate(runner_, requests);
  int seen = 0;
  std::vector<size_t> finished;
  GenerateOptions options;
  options.on_token = [&](size_t i, const GeneratedToken&) { return i != 1 || ++seen < 3; };
  options.on_finished = [&](size_t i, const Generation&) { finished.push_back(i); };
  const std::vector<Generation> got = generate(runner_, requests, options);
  EXPECT_EQ(got[1].finish, FinishReason::kCancelled);
  EXPECT_EQ(got[1].tokens.size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(got[1].tokens[i].id, free[1].tokens[i].id);
  expect_same(got[0], free[0]);
  expect_same(got[2], free[2]);
  ASSERT_EQ(finished.size(), 3u);
  EXPECT_EQ(finished[0], 1u);
}

TEST_F(Generate, PrefillIsReportedBeforeEveryStep) {
  std::vector<int64_t> reported;
  GenerateOptions options = limits(8, 16);
  options.on_prefill = [&](size_t, int64_t done, int64_t total) {
    EXPECT_EQ(total, 50);
    reported.push_back(done);
    return true;
  };
  generate(runner_, {request(50, 6, {}, 1)}, options);
  EXPECT_EQ(reported, (std::vector<int64_t>{0, 16, 32, 48}));
}

TEST_F(Generate, CancellingAPrefillStopsItAndNoOther) {
  const std::vector<Request> requests = {request(20, 6, {}, 4), request(50, 7, {}, 4), request(10, 8, {}, 4)};
  const std::vector<Generation> free = generate(runner_, requests, limits(3, 16));
  std::vector<int64_t> reported;
  std::vector<size_t> finished;
  GenerateOptions options = limits(3, 16);
  options.on_prefill = [&](size_t i, int64_t done, int64_t) {
    if (i == 1) reported.push_back(done);
    return i != 1 || done < 28;
  };
  options.on_finished = [&](size_t i, const Generation&) { finished.push_back(i); };
  const std::vector<Generation> got = generate(runner_, requests, options);
  EXPECT_EQ(reported, (std::vector<int64_t>{0, 0, 2, 16, 30}));  // the shorter ones go first
  EXPECT_EQ(got[1].finish, FinishReason::kCancelled);
  EXPECT_TRUE(got[1].tokens.empty());
  expect_same(got[0], free[0]);
  expect_same(got[2], free[2]);
  EXPECT_EQ(std::count(finished.begin(), finished.end(), 1u), 1);
  EXPECT_EQ(finished.size(), 3u);
}

TEST_F(Generate, TopLogprobsAreSortedAndSumToOne) {
  Request r = request(15, 7, {.temperature = 1.2f, .seed = 4}, 4);
  r.top_logprobs = 512;  // the whole vocabulary
  const Generation whole = generate(runner_, {r})[0];
  for (const GeneratedToken& t : whole.tokens) {
    ASSERT_EQ(t.top.size(), 512u);
    double sum = 0;
    bool found = false;
    for (size_t i = 0; i < t.top.size(); ++i) {
      sum += std::exp(double{t.top[i].second});
      if (i > 0) {
        EXPECT_GE(t.top[i - 1].second, t.top[i].second);
        if (t.top[i - 1].second == t.top[i].second) {
          EXPECT_LT(t.top[i - 1].first, t.top[i].first);
        }
      }
      if (t.top[i].first == t.id) {
        found = true;
        EXPECT_EQ(t.top[i].second, t.logprob);  // raw: not of the distribution that temperature makes
      }
    }
    EXPECT_TRUE(found);
    EXPECT_NEAR(sum, 1.0, 1e-5);
  }
  r.top_logprobs = 3;
  EXPECT_EQ(generate(runner_, {r})[0].tokens[0].top.size(), 3u);
}

TEST_F(Generate, RefusesWhatCannotRun) {
  Request r = request(4, 8, {});
  r.prompt.clear();
  EXPECT_NE(error_of(runner_, r).find("no tokens"), std::string::npos);
  r.prompt = {1, 512};
  EXPECT_EQ(error_of(runner_, r), "token id 512 is outside the vocabulary of 512");
  r.prompt = {-1};
  EXPECT_EQ(error_of(runner_, r), "token id -1 is outside the vocabulary of 512");
  r.prompt = {1};
  r.max_tokens = 0;
  EXPECT_NE(error_of(runner_, r).find("max_tokens 0"), std::string::npos);
  // Nothing could ever run: an error, not an endless loop.
  r.max_tokens = 1;
  EXPECT_NE(error_of(runner_, r, limits(0, 512)).find("max_num_seqs 0"), std::string::npos);
  EXPECT_NE(error_of(runner_, r, limits(8, 0)).find("max_num_batched_tokens 0"), std::string::npos);
}

// Conversations of several turns, side by side: the same answers with and without a prefix tree, and with one
// only new text is computed.
TEST_F(Generate, PrefixesChangeNothingButTheWork) {
  PrefixTree tree(runner_.pool(), {.debug = true});
  GenerateOptions with = limits(3, 50);
  with.prefixes = &tree;
  const std::vector<int32_t> system = random_tokens(40, 11, 512);
  std::vector<Request> turns;
  for (int i = 0; i < 4; ++i) {
    Request r = request(5 + 7 * i, 20 + i, {.temperature = 1.0f, .seed = 30u + i}, 9 + i);
    r.prompt.insert(r.prompt.begin(), system.begin(), system.end());
    turns.push_back(r);
  }
  for (int turn = 0; turn < 3; ++turn) {
    const std::vector<Generation> plain = generate(runner_, turns, limits(3, 50));
    const std::vector<Generation> reused = generate(runner_, turns, with);
    const std::vector<Generation> again = generate(runner_, turns, with);
    for (size_t i = 0; i < turns.size(); ++i) {
      expect_same(reused[i], plain[i]);
      expect_same(again[i], plain[i]);
      const int64_t prompt = static_cast<int64_t>(turns[i].prompt.size());
      EXPECT_EQ(plain[i].cached_tokens, 0);
      EXPECT_EQ(again[i].cached_tokens, (prompt - 1) / 16 * 16);
      std::vector<int32_t>& next = turns[i].prompt;
      if (turn > 0) {
        EXPECT_GE(reused[i].cached_tokens, prompt - 6 - 16);  // all but the new words and an open chunk
      }
      for (const GeneratedToken& t : plain[i].tokens) next.push_back(t.id);
      for (int32_t word : random_tokens(5, 100 * turn + i, 512)) next.push_back(word);
    }
    std::vector<int64_t> references(runner_.pool().rows(), 0);
    tree.check_integrity(references);
    runner_.pool().check_integrity(references);
  }
}

// A cache that holds one request at a time: they wait for each other, and none is lost.
TEST(GenerateMemory, TooFewRowsForAllAtOnce) {
  const ModelConfig config = test::small_config("k31");
  const CacheShape shape = cache_shape(config, LatentFormat::kBf16, IndexKeyFormat::kFp8);
  const CachePlan plan(cache_kinds(shape));
  const auto weights = [&] {
    return load_weights("", config, {.format = LoadFormat::kDummy, .seed = 7, .show_progress = false});
  };
  Runner roomy(config, weights(), {.threads = 1});
  Runner tight(config, weights(), {.threads = 1, .cache_rows = CachedSequence::most_rows(plan, 60) + 1});
  PrefixTree tree(tight.pool(), {.debug = true});
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) requests.push_back(request(30, 40 + i % 2, {.seed = 3u + i}, 8));
  const std::vector<Generation> want = generate(roomy, requests);
  GenerateOptions options;
  options.prefixes = &tree;
  const std::vector<Generation> got = generate(tight, requests, options);
  for (size_t i = 0; i < requests.size(); ++i) expect_same(got[i], want[i]);
  const std::string message = error_of(tight, request(5000, 1, {}));
  EXPECT_NE(message.find("5000 tokens"), std::string::npos) << message;
  EXPECT_NE(message.find("there are " + std::to_string(tight.pool().rows())), std::string::npos) << message;
}

TEST(GenerateContext, LimitIsNamedAndKept) {
  ModelConfig config = test::small_config("kimi-linear");
  config.max_position_embeddings = 24;
  Runner runner(config,
                load_weights("", config, {.format = LoadFormat::kDummy, .seed = 7, .show_progress = false}),
                {.precision = {}, .plan = {}, .threads = 1});
  const std::string message = error_of(runner, request(24, 1, {}));
  EXPECT_NE(message.find("24 tokens"), std::string::npos) << message;
  EXPECT_NE(message.find("holds 24"), std::string::npos) << message;
  const Generation g = generate(runner, {request(20, 1, {.seed = 1}, 100)})[0];
  EXPECT_EQ(g.tokens.size(), 4u);  // positions 20 … 23
  EXPECT_EQ(g.finish, FinishReason::kLength);
}

}  // namespace
}  // namespace perigee
