// Engine: what it promises beyond generate(): several answers, scored prompts, priorities, preemption,
// cancellation at every stage, drafts, looking ahead and faults.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "engine/engine_case.h"
#include "engine/event_log.h"

namespace perigee {
namespace {

using test::random_tokens;

using test::Branch, test::EngineTest, test::expect_same, test::Heard, test::kVocab, test::Listener,
    test::request;

TEST_F(EngineTest, SeveralAnswersAreThoseOfSeveralRequests) {
  Runner few_slots = runner_for(400, 200, 2);
  for (Runner* runner : {&runner_, &few_slots}) {
    PrefixTree tree(runner->pool(), {.debug = true});
    for (PrefixTree* prefixes : {static_cast<PrefixTree*>(nullptr), &tree}) {
      Engine engine(
          *runner, prefixes,
          {.scheduler = {
               .max_num_seqs = 3, .max_num_batched_tokens = 20, .look_ahead = prefixes != nullptr}});
      Request r = request(45, 3, 9);
      r.n = 5;
      const RequestId id = engine.submit(r);
      const RequestId other = engine.submit(request(30, 9));
      Listener heard;
      heard.run(engine);
      r.n = 1;
      for (int branch = 0; branch < 5; ++branch) {
        expect_same(heard[{id, branch}].tokens, alone(r).tokens);
        ++r.sampling.seed;
      }
      expect_same(heard[other].tokens, alone(request(30, 9)).tokens);
    }
  }
}

// The prompt is computed once, whatever n is.
TEST_F(EngineTest, BranchesShareThePrompt) {
  Engine engine(runner_, nullptr, {.scheduler = {.max_num_seqs = 8}});
  Request r = request(60, 3, 4);
  r.n = 8;
  engine.submit(r);
  while (engine.step()) {
  }
  EXPECT_EQ(engine.stats().prompt_tokens, 60);
  EXPECT_EQ(engine.stats().generated_tokens, 8 * 4);
}

// Prompts that come together and begin alike: the first computes what they share, the others wait for it.
TEST_F(EngineTest, ASharedPrefixUnderWayIsComputedOnce) {
  PrefixTree tree(runner_.pool(), {.debug = true});
  Engine engine(runner_, &tree, {.scheduler = {.max_num_seqs = 6, .max_num_batched_tokens = 50}});
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(request(20 + i, 60 + i, 5));
    const std::vector<int32_t> shared = random_tokens(300, 9, kVocab);
    requests[i].prompt.insert(requests[i].prompt.begin(), shared.begin(), shared.end());
    engine.submit(requests[i]);
  }
  Listener heard;
  heard.run(engine);
  EXPECT_LE(engine.stats().prompt_tokens, 300 + 6 * (26 + 16));
  for (int i = 0; i < 6; ++i) expect_same(heard[i + 1].tokens, alone(requests[i]).tokens);
}

// What decode reported for a token is what scoring it as a prompt reports, to the last bit.
TEST_F(EngineTest, AScoredPromptHasTheLogprobsOfItsDecoding) {
  Request r = request(37, 5, 30);
  r.top_logprobs = 3;
  const Generation g = alone(r);
  Request scored{.prompt = r.prompt, .max_tokens = 1, .top_logprobs = 0, .prompt_logprobs = 3};
  for (const GeneratedToken& t : g.tokens) scored.prompt.push_back(t.id);
  PrefixTree tree(runner_.pool(), {.debug = true});
  for (int budget : {7, 64, 512}) {  // the second and third time the prompt is in the tree
    Engine engine(runner_, &tree, {.scheduler = {.max_num_seqs = 4, .max_num_batched_tokens = budget}});
    const RequestId id = engine.submit(scored);
    Listener heard;
    heard.run(engine);
    const std::vector<GeneratedToken>& got = heard[id].prompt_tokens;
    ASSERT_EQ(got.size(), scored.prompt.size() - 1);
    expect_same(std::span(got).subspan(r.prompt.size() - 1), g.tokens);
  }
}

TEST_F(EngineTest, ProcessedLogprobsAreThoseOfTheDraw) {
  Request r = request(12, 6, 40);
  r.sampling.temperature = 1.7f;
  r.sampling.top_k = 5;
  r.logits.presence_penalty = 1.5f;
  r.top_logprobs = kVocab;
  const Generation raw = alone(r);
  r.processed_logprobs = true;
  r.prompt_logprobs = 2;
  const Generation processed = alone(r);
  Request unprocessed = r;
  unprocessed.processed_logprobs = false;
  expect_same(processed.prompt_tokens, alone(unprocessed).prompt_tokens);  // nothing was drawn there
  ASSERT_EQ(raw.tokens.size(), processed.tokens.size());
  for (size_t i = 0; i < raw.tokens.size(); ++i) {
    ASSERT_EQ(raw.tokens[i].id, processed.tokens[i].id);
    double sum = 0;
    int kept = 0;
    std::map<int32_t, float> model(raw.tokens[i].top.begin(), raw.tokens[i].top.end());
    for (const auto& [id, p] : processed.tokens[i].top) {
      if (std::isinf(p)) continue;
      ++kept;
      sum += std::exp(double{p});
    }
    EXPECT_EQ(kept, 5);
    EXPECT_NEAR(sum, 1, 1e-5);
    // Of tokens not penalised, ratios are those of the model at this temperature.
    std::vector<std::pair<int32_t, float>> unpenalised;
    for (const auto& entry : processed.tokens[i].top) {
      bool seen = false;
      for (size_t j = 0; j < i; ++j) seen |= raw.tokens[j].id == entry.first;
      if (!seen && !std::isinf(entry.second)) unpenalised.push_back(entry);
    }
    for (size_t j = 1; j < unpenalised.size(); ++j) {
      const auto& [a, pa] = unpenalised[0];
      const auto& [b, pb] = unpenalised[j];
      EXPECT_NEAR(pa - pb, (model[a] - model[b]) / 1.7f, 1e-4);
    }
  }
}

TEST_F(EngineTest, TooFewRowsForAllPreemptsAndAllFinish) {
  Runner tight = runner_for(300, 3);
  for (bool with_tree : {false, true}) {
    PrefixTree tree(tight.pool(), {.debug = true});
    Engine engine(tight, with_tree ? &tree : nullptr,
                  {.scheduler = {.max_num_seqs = 4, .max_num_batched_tokens = 256}});
    Request several = request(200, 50, 80);
    several.n = 4;
    const RequestId first = engine.submit(several), second = engine.submit(request(210, 51, 80));
    Listener heard;
    heard.run(engine);
    EXPECT_GT(engine.stats().preemptions, 0);
    several.n = 1;
    for (int branch = 0; branch < 4; ++branch) {
      EXPECT_EQ((heard[{first, branch}].finish), FinishReason::kLength);
      expect_same(heard[{first, branch}].tokens, alone(several).tokens);
      ++several.sampling.seed;
    }
    expect_same(heard[second].tokens, alone(request(210, 51, 80)).tokens);
    EXPECT_EQ(heard.finished().front(), (Branch{1, 0}));  // the first is never preempted
    EXPECT_EQ(tight.pool().free_slots(), tight.pool().slots());
    tree.clear();
    EXPECT_EQ(tight.pool().free_rows(), tight.pool().rows());
  }
}

TEST_F(EngineTest, LowerPriorityWaitsAndMakesRoom) {
  Engine engine(runner_, nullptr, {.scheduler = {.max_num_seqs = 1, .max_num_batched_tokens = 16}});
  Request late = request(20, 1, 12), urgent = request(20, 2, 4);
  late.priority = 5;
  const RequestId first = engine.submit(late), second = engine.submit(late);
  for (int i = 0; i < 4; ++i) engine.step();
  const RequestId now = engine.submit(urgent);
  Listener heard;
  heard.run(engine);
  EXPECT_EQ(heard.finished(), (std::vector<Branch>{{now, 0}, {first, 0}, {second, 0}}));
  EXPECT_EQ(engine.stats().preemptions, 1);
  expect_same(heard[first].tokens, alone(late).tokens);
}

TEST_F(EngineTest, AShortPromptNeedNotWaitForALongOne) {
  Engine engine(runner_, nullptr, {.scheduler = {.max_num_seqs = 4, .max_num_batched_tokens = 16}});
  const RequestId lengthy = engine.submit(request(300, 1, 1)), brief = engine.submit(request(8, 2, 1));
  Listener heard;
  heard.run(engine);
  EXPECT_EQ(heard.finished(), (std::vector<Branch>{{brief, 0}, {lengthy, 0}}));
}

// Short ones keep coming; the long one still gets half of every step.
TEST_F(EngineTest, ALongPromptIsNotStarvedByShortOnes) {
  Engine engine(runner_, nullptr, {.scheduler = {.max_num_seqs = 4, .max_num_batched_tokens = 16}});
  const RequestId lengthy = engine.submit(request(128, 1, 1));
  int steps = 0;
  for (; engine.progress(lengthy); ++steps) {
    engine.submit(request(12, 100 + steps, 1));
    engine.step();
    ASSERT_LT(steps, 60);
  }
  EXPECT_GT(steps, 128 / 16);
}

TEST_F(EngineTest, CancelAtEveryStage) {
  for (int steps : {0, 1, 2, 3, 5, 8}) {
    for (int branch : {Engine::kAllBranches, 0, 1, 2}) {
      Engine engine(
          runner_, nullptr,
          {.scheduler = {.max_num_seqs = 4, .max_num_batched_tokens = 16, .look_ahead = steps % 2 == 0}});
      Request r = request(40, 3, 9);
      r.n = 3;
      const RequestId id = engine.submit(r), other = engine.submit(request(25, 4, 9));
      Listener heard;
      for (int i = 0; i < steps; ++i) engine.step();
      heard.listen(engine);
      engine.cancel(id, branch);
      engine.cancel(id + 100);
      heard.listen(engine);
      heard.run(engine);
      for (int b = 0; b < 3; ++b) {
        const Heard& h = heard[{id, b}];
        const bool cancelled = branch == Engine::kAllBranches || branch == b;
        EXPECT_EQ(h.finish, cancelled ? FinishReason::kCancelled : FinishReason::kLength);
        Request one = r;
        one.n = 1;
        one.sampling.seed += b;
        const Generation want = alone(one);
        expect_same(h.tokens, std::span(want.tokens).first(cancelled ? h.tokens.size() : want.tokens.size()));
      }
      expect_same(heard[other].tokens, alone(request(25, 4, 9)).tokens);
      EXPECT_EQ(runner_.pool().free_rows(), runner_.pool().rows());
      EXPECT_EQ(runner_.pool().free_slots(), runner_.pool().slots());
    }
  }
}

TEST_F(EngineTest, DraftsChangeNothingButTheSteps) {
  Request r = request(30, 8, 40);
  r.logits.repetition_penalty = 1.3f;  // the processor must follow the drafts
  r.logits.frequency_penalty = 0.4f;
  r.top_logprobs = 2;
  const Generation want = alone(r);
  std::vector<int32_t> whole = r.prompt;
  for (const GeneratedToken& t : want.tokens) whole.push_back(t.id);
  std::mt19937 random(4);
  const auto oracle = [&](int wrong_in_8) {
    return [&, wrong_in_8](std::span<const int32_t> tokens, int most) {
      std::vector<int32_t> drafts;
      for (size_t at = tokens.size(); at < whole.size() && static_cast<int>(drafts.size()) < most; ++at)
        drafts.push_back(static_cast<int>(random() % 8) < wrong_in_8 ? (whole[at] + 1) % kVocab : whole[at]);
      return drafts;
    };
  };
  for (int wrong : {0, 2, 8}) {
    for (int most : {1, 3, 7}) {
      PrefixTree tree(runner_.pool(), {.debug = true});
      Engine engine(runner_, &tree,
                    {.scheduler = {.max_num_seqs = 4,
                                   .max_num_batched_tokens = 64,
                                   .drafter = oracle(wrong),
                                   .max_drafts = most}});
      const RequestId id = engine.submit(r);
      Listener heard;
      heard.run(engine);
      expect_same(heard[id].tokens, want.tokens);
      EXPECT_EQ(heard[id].finish, FinishReason::kLength);
      if (wrong == 0) {
        EXPECT_LE(engine.stats().steps, 2 + 40 / (1 + most));
      }
      if (wrong == 8) {
        EXPECT_EQ(engine.stats().accepted_draft_tokens, 0);
      }
    }
  }
}

TEST_F(EngineTest, RefusesWhatCannotRun) {
  Engine engine(runner_, nullptr, {.max_waiting = 3});
  const auto error_of = [&](auto change) -> std::string {
    Request r = request(4, 1);
    change(r);
    try {
      engine.submit(r);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of([](Request& r) { r.n = 0; }), "n 0 must be in [1, 1024]");
  EXPECT_EQ(error_of([](Request& r) { r.sampling.temperature = NAN; }),
            "temperature nan must be a number of at least 0");
  EXPECT_EQ(error_of([](Request& r) { r.sampling.top_p = 2; }), "top_p 2 must be in [0, 1]");
  EXPECT_EQ(error_of([](Request& r) { r.sampling.top_k = -1; }), "top_k -1 must be at least 0 (0: all)");
  EXPECT_EQ(error_of([](Request& r) { r.top_logprobs = -1; }), "top_logprobs -1 must be at least 0");
  EXPECT_NE(error_of([](Request& r) { r.n = 4; }).find("try again later"), std::string::npos);
  EXPECT_EQ(error_of([](Request& r) { r.n = 3; }), "no error");
  EXPECT_NE(error_of([](Request&) {}).find("of at most 3"), std::string::npos);
}

// A token whose embedding is damaged: the request that has it ends with an error, the others do not notice.
TEST_F(EngineTest, LogitsThatAreNotNumbersEndTheirRequestAlone) {
  const ModelConfig config = test::small_config("k31");
  Weights weights =
      load_weights("", config, {.format = LoadFormat::kDummy, .seed = 7, .show_progress = false});
  bf16* row = const_cast<bf16*>(weights.embedding) + int64_t{5} * config.hidden_size;
  for (int i = 0; i < config.hidden_size; ++i) row[i] = float_to_bf16(NAN);
  Runner damaged(config, std::move(weights), {.threads = 2});
  Engine engine(damaged, nullptr, {});
  Request bad = request(9, 1), good = request(20, 2);
  std::erase(good.prompt, 5);
  good.logits.logit_bias = {{5, -100.0f}};
  bad.prompt[4] = 5;
  const RequestId a = engine.submit(bad), b = engine.submit(good);
  Listener heard;
  heard.run(engine);
  EXPECT_EQ(heard[a].finish, FinishReason::kError);
  EXPECT_NE(heard[a].error.find("not numbers"), std::string::npos);
  EXPECT_EQ(engine.stats().failed, 1);
  expect_same(heard[b].tokens, alone(good).tokens);
}

// A stop id is seen when the step after is under way: what that computed is dropped, in the tree too.
TEST_F(EngineTest, LookingAheadChangesNoAnswer) {
  Runner other = test::small_runner("k31", {.threads = 2});
  PrefixTree waiting(runner_.pool(), {.debug = true}), looking(other.pool(), {.debug = true});
  std::vector<Request> requests = {request(30, 1, 40), request(47, 2, 33), request(16, 3, 24)};
  requests[0].top_logprobs = 3;
  requests[1].stop_ids = {alone(requests[1]).tokens[17].id};
  requests[2].processed_logprobs = true;
  std::map<bool, Listener> heard;
  std::map<bool, Engine::Stats> stats;
  for (const bool look_ahead : {false, true}) {
    Engine engine(look_ahead ? other : runner_, look_ahead ? &looking : &waiting,
                  {.scheduler = {.max_num_seqs = 4, .look_ahead = look_ahead}});
    for (const Request& r : requests) engine.submit(r);
    heard[look_ahead].run(engine);
    stats[look_ahead] = engine.stats();
  }
  for (const auto& [branch, want] : heard[false].all()) {
    const Heard& got = heard[true][branch];
    expect_same(got.tokens, want.tokens);
    EXPECT_EQ(got.finish, want.finish);
  }
  EXPECT_EQ(heard[true][2].finish, FinishReason::kStop);
  EXPECT_EQ(heard[true].finished(), heard[false].finished());
  EXPECT_EQ(stats[true].steps, stats[false].steps);
  EXPECT_EQ(stats[true].generated_tokens, stats[false].generated_tokens);
  EXPECT_EQ(stats[false].steps_ahead, 0);
  EXPECT_GT(stats[true].steps_ahead, 30);
  EXPECT_EQ(stats[true].dropped_tokens, 1);
  for (size_t i = 0; i < requests.size(); ++i) {  // the trees know the same tokens
    std::vector<int32_t> tokens = requests[i].prompt;
    for (const GeneratedToken& t : heard[true][static_cast<RequestId>(i + 1)].tokens) tokens.push_back(t.id);
    tokens.resize(tokens.size() + 20, 1);
    EXPECT_EQ(looking.match({}, tokens).matched, waiting.match({}, tokens).matched) << "request " << i;
  }
}

// What needs a token on the host keeps everybody waiting for it.
TEST_F(EngineTest, WhatNeedsTheTokenIsNotComputedAhead) {
  Request penalised = request(20, 1, 12);
  penalised.logits.repetition_penalty = 1.3f;
  Engine engine(runner_, nullptr, {.scheduler = {.max_num_seqs = 4, .look_ahead = true}});
  const RequestId a = engine.submit(penalised), b = engine.submit(request(20, 2, 12));
  Listener heard;
  heard.run(engine);
  EXPECT_EQ(engine.stats().steps_ahead, 0);
  expect_same(heard[a].tokens, alone(penalised).tokens);
  expect_same(heard[b].tokens, alone(request(20, 2, 12)).tokens);
}

// A row that somebody else holds is found when the engine falls idle, and with a tree in debug mode at every
// step, where the requests of that step end with it.
TEST_F(EngineTest, ACacheThatContradictsItselfIsTold) {
  for (bool debug : {false, true}) {
    PrefixTree tree(runner_.pool(), {.debug = debug});
    std::vector<std::string> faults;
    Engine engine(runner_, &tree, {.on_fault = [&](const std::string& fault) { faults.push_back(fault); }});
    Listener heard;
    engine.submit(request(40, 1, 4));
    heard.run(engine);
    EXPECT_TRUE(faults.empty());
    const Row stray = runner_.pool().take_row();
    const RequestId id = engine.submit(request(40, 2, 4));
    heard.run(engine);
    if (debug) {
      EXPECT_EQ(heard[id].finish, FinishReason::kError);
      EXPECT_NE(heard[id].error.find("holders"), std::string::npos) << heard[id].error;
    } else {
      EXPECT_EQ(heard[id].finish, FinishReason::kLength);
      ASSERT_EQ(faults.size(), 1u);
      EXPECT_NE(faults[0].find("holders"), std::string::npos) << faults[0];
    }
  }
}

// What --cache-memory says is all that rows and slots take.
TEST_F(EngineTest, SlotsAreCountedAmongTheBytesOfTheCache) {
  const ModelConfig config = test::small_config("k31");
  const auto runner = [&](int64_t bytes, int64_t sequences) {
    return Runner(config,
                  load_weights("", config, {.format = LoadFormat::kDummy, .seed = 7, .show_progress = false}),
                  {.threads = 1, .cache_bytes = bytes, .sequences = sequences});
  };
  const CachePlan& plan = runner_.pool().plan();
  const int64_t bytes = 64 * plan.slot_bytes() + 100 * plan.row_bytes();
  for (int64_t sequences : {1, 4, 256}) {
    const Runner r = runner(bytes, sequences);
    EXPECT_LE(r.pool().bytes(), bytes);
    EXPECT_GT(r.pool().bytes(), bytes - plan.row_bytes());
    EXPECT_EQ(r.pool().bytes(), r.pool().rows() * plan.row_bytes() + r.pool().slots() * plan.slot_bytes());
    EXPECT_EQ(r.pool().slots(), std::min(sequences, bytes / 8 / plan.slot_bytes()));
  }
}

}  // namespace
}  // namespace perigee
