// The prefix tree: what hits and what must not, which checkpoints stay, what goes first, and random traffic
// in a small pool where every byte that is read must be a digest of the tokens before it.
#include "cache/prefix_tree.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <list>
#include <numeric>
#include <random>

#include "base/error.h"
#include "cache/cached_sequence.h"
#include "fake_model.h"
#include "small_pool.h"

namespace perigee {
namespace {

using Tokens = std::vector<int32_t>;
using test::FakeModel, test::SmallPool;

Tokens counting(int64_t count, int32_t from = 0) {
  Tokens out(count);
  std::iota(out.begin(), out.end(), from);
  return out;
}

Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class PrefixTreeTest : public testing::Test {
 protected:
  explicit PrefixTreeTest(int64_t rows = 400, const PrefixTreeOptions& options = {.checkpoint_share = 1.0,
                                                                                  .checkpoint_spacing = 0,
                                                                                  .debug = true})
      : PrefixTreeTest(rows, options, 0, 0) {}
  // With a store of so many rows in memory and in a file.
  PrefixTreeTest(int64_t rows, const PrefixTreeOptions& options, int64_t memory_rows, int64_t file_rows)
      : small_(rows, 16),
        store_(pool_, {.memory_bytes = memory_rows * pool_.plan().row_bytes(),
                       .file = file_rows ? temporary_file() : "",
                       .file_bytes = file_rows * pool_.plan().row_bytes()}),
        tree_(pool_, options, memory_rows + file_rows > 0 ? &store_ : nullptr) {}

  static std::string temporary_file() {
    return (std::filesystem::temp_directory_path() / ("perigee-tree-" + std::to_string(getpid()))).string();
  }

  // Runs a prompt and `answer` as a request would; returns how many tokens were cached.
  int64_t request(const Tokens& prompt, const Tokens& answer = {}, const PrefixScope& scope = {},
                  int64_t budget = 1000) {
    CachedSequence s(pool_, &tree_, scope, prompt);
    prefill(s, budget);
    for (int32_t token : answer) {
      s.append(token);
      if (!s.make_room(1)) ADD_FAILURE() << "no room";
      model_.step(s.cache(), s.tokens(), s.cache().length() + 1);
      s.stepped();
    }
    model_.expect(s.cache(), s.tokens());
    s.leave();
    return s.cached_tokens();
  }

  void prefill(CachedSequence& s, int64_t budget) {
    model_.expect(s.cache(), s.tokens());
    while (s.prefilling()) {
      const CachedSequence::PromptStep step = s.next_prompt_step(budget);
      ASSERT_GT(step.count, 0);
      ASSERT_LT(step.undecided, step.count);
      ASSERT_TRUE(s.make_room(step.count, step.undecided));
      model_.step(s.cache(), s.tokens(), s.cache().length() + step.count, step.undecided);
      s.stepped();
    }
  }

  void expect_whole(std::initializer_list<const SequenceCache*> live = {}) {
    std::vector<int64_t> references(pool_.rows(), 0);
    tree_.check_integrity(references);
    for (const SequenceCache* s : live) s->count_references(references);
    pool_.check_integrity(references);
  }

  int64_t hit(const Tokens& tokens, const PrefixScope& scope = {}) {
    return tree_.match(scope, tokens).tokens();
  }

  const CacheShape shape_ = test::small_shape();
  const FakeModel model_{shape_};
  SmallPool small_;
  CachePool& pool_ = small_.pool;
  RowStore store_;
  PrefixTree tree_;
};

TEST_F(PrefixTreeTest, AnExactRepeatComputesAtMostSixteenTokens) {
  for (int64_t length : {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 300}) {
    const Tokens prompt = counting(length, static_cast<int32_t>(1000 * length));
    EXPECT_EQ(request(prompt, {7}), 0);
    EXPECT_EQ(request(prompt, {7}), (length - 1) / 16 * 16) << length;
  }
  expect_whole();
}

TEST_F(PrefixTreeTest, TheNextTurnComputesAtMostFifteenOldTokens) {
  Tokens conversation = counting(100);
  int64_t old = 0;
  for (int turn = 0; turn < 12; ++turn) {
    const Tokens answer = counting(17 + turn, 5000 + 100 * turn);
    const int64_t cached = request(conversation, answer);
    if (turn > 0) {
      EXPECT_GE(cached, old - 15) << "turn " << turn;
    }
    conversation = joined(conversation, answer);
    old = static_cast<int64_t>(conversation.size());
    conversation = joined(conversation, counting(9, 9000 + 100 * turn));
    expect_whole();
  }
}

TEST_F(PrefixTreeTest, ATurnReplacesTheOneBeforeUnlessOthersHitIt) {
  const Tokens first = counting(100), answer = counting(30, 500);
  request(first, answer);  // leaves kPrompt at 96 and kTurn at 128
  const Tokens second = joined(joined(first, answer), counting(40, 700));  // 170
  EXPECT_EQ(request(second, counting(30, 800)), 128);
  EXPECT_EQ(hit(counting(100)), 96);
  EXPECT_EQ(hit(joined(first, joined(answer, {-9, -9}))), 96);  // 128 gave way
  const Tokens third = joined(joined(second, counting(30, 800)), counting(40, 900));
  EXPECT_EQ(hit(third), 192);  // (170 + 30) / 16 · 16: one hit more than its successor's
  EXPECT_EQ(request(third, counting(30, 1000)), 192);
  EXPECT_EQ(hit(joined(joined(second, counting(30, 800)), {-9, -9})), 192);
}

TEST_F(PrefixTreeTest, WherePromptsPartTheThirdOneHits) {
  const Tokens common = counting(200);
  EXPECT_EQ(request(joined(common, counting(50, 1000))), 0);
  EXPECT_EQ(request(joined(common, counting(50, 2000))), 0);  // leaves a checkpoint at 192 in passing
  EXPECT_EQ(request(joined(common, counting(50, 3000))), 192);
  expect_whole();
}

TEST_F(PrefixTreeTest, ScopesNeverMeet) {
  const Tokens prompt = counting(100);
  const std::vector<PrefixScope> scopes = {
      {},
      {.salt = "a"},
      {.salt = "b"},
      {.adapter = "x@1"},
      {.adapter = "x@2"},
      {.adapter = "x", .salt = "@1"},
      {.images = {{.first = 10, .tokens = 20, .hash = 1}}},
      {.images = {{.first = 10, .tokens = 20, .hash = 2}}},
      {.images = {{.first = 11, .tokens = 20, .hash = 1}}},
  };
  for (const PrefixScope& scope : scopes) EXPECT_EQ(request(prompt, {}, scope), 0);
  for (const PrefixScope& scope : scopes) EXPECT_EQ(hit(prompt, scope), 96);
  tree_.clear_adapter("x");
  EXPECT_EQ(hit(prompt, scopes[3]), 0);
  EXPECT_EQ(hit(prompt, scopes[4]), 0);
  EXPECT_EQ(hit(prompt, scopes[5]), 0);
  EXPECT_EQ(hit(prompt, scopes[1]), 96);
  tree_.clear();
  for (const PrefixScope& scope : scopes) EXPECT_EQ(hit(prompt, scope), 0);
  EXPECT_EQ(pool_.free_rows(), pool_.rows());
}

TEST_F(PrefixTreeTest, RowsWithoutACheckpointAreNoHit) {
  CachedSequence s(pool_, &tree_, {}, counting(100));
  prefill(s, 1000);
  tree_.insert({.salt = "rows"}, s.tokens(), s.cache().rows());
  const PrefixHit miss = tree_.match({.salt = "rows"}, s.tokens());
  EXPECT_EQ(miss.tokens(), 0);
  EXPECT_EQ(miss.matched, 100);
  EXPECT_TRUE(miss.rows.empty());
}

TEST_F(PrefixTreeTest, AChangedCheckpointIsNoticed) {
  request(counting(100));
  PrefixHit hit = tree_.match({}, counting(100));
  hit.checkpoint.rows[1].data()[12345] ^= 1;
  EXPECT_THROW(tree_.match({}, counting(100)), Error);
}

TEST_F(PrefixTreeTest, LongPrefixesGetSpacedCheckpoints) {
  PrefixTree tree(pool_, {.checkpoint_share = 1.0, .checkpoint_spacing = 128});
  std::vector<int64_t> at;
  for (const auto& planned : tree.plan_checkpoints({}, 1000)) at.push_back(planned.position);
  EXPECT_EQ(at, (std::vector<int64_t>{128, 256, 384, 512, 640, 768, 896, 992}));
}

class SmallShare : public PrefixTreeTest {
 protected:
  SmallShare() : PrefixTreeTest(60, {.checkpoint_share = 0.25, .checkpoint_spacing = 0, .debug = true}) {}
};

TEST_F(SmallShare, CheckpointsKeepTheirShare) {
  for (int i = 0; i < 10; ++i) {
    request(counting(40, 1000 * i));
    EXPECT_LE(tree_.stats().checkpoints * pool_.plan().state_rows(), 15);
    expect_whole();
  }
  EXPECT_EQ(hit(counting(40, 9000)), 32);  // the newest of equals
}

class Tight : public PrefixTreeTest {
 protected:
  Tight() : PrefixTreeTest(14) {}
};

TEST_F(Tight, EvictsOldAndShortBeforeLongAndUsed) {
  request(counting(20, 1000));   // saves 16 tokens
  request(counting(250, 2000));  // saves 240
  for (int i = 0; i < 3; ++i) EXPECT_EQ(hit(counting(250, 2000)), 240);
  ASSERT_TRUE(tree_.make_room(7));
  EXPECT_EQ(hit(counting(250, 2000)), 240);
  EXPECT_EQ(hit(counting(20, 1000)), 0);
  expect_whole();
  ASSERT_TRUE(tree_.make_room(14));
  EXPECT_EQ(pool_.free_rows(), 14);
  EXPECT_EQ(hit(counting(250, 2000)), 0);
  EXPECT_FALSE(tree_.make_room(15));
}

TEST_F(Tight, WhatIsInUseStays) {
  request(counting(250));
  CachedSequence s(pool_, &tree_, {}, counting(250));
  EXPECT_EQ(s.cached_tokens(), 240);
  EXPECT_FALSE(tree_.make_room(14));
  model_.expect(s.cache(), s.tokens());
  expect_whole({&s.cache()});
}

TEST_F(Tight, EvictableRowsAreThoseThatMakeRoomCanFree) {
  request(counting(120));
  request(counting(120, 500));
  const int64_t evictable = tree_.evictable_rows();
  EXPECT_EQ(evictable, pool_.rows() - pool_.free_rows());
  const CachedSequence s(pool_, &tree_, {}, counting(120));
  EXPECT_EQ(tree_.evictable_rows(), evictable - 1 - pool_.plan().state_rows());
}

class Tiers : public PrefixTreeTest {
 protected:
  Tiers() : PrefixTreeTest(11, {.checkpoint_share = 1.0, .checkpoint_spacing = 0, .debug = true}, 6, 20) {}
};

TEST_F(Tiers, WhatIsEvictedComesBackWhole) {
  const Tokens prompt = counting(300), other = counting(300, 5000);
  request(prompt, {7, 8, 9});
  tree_.wait();
  request(other, {7});  // needs its rows
  const PrefixHit miss = tree_.match({}, prompt);
  EXPECT_EQ(miss.tokens(), 0);
  EXPECT_EQ(miss.stored, 288);
  tree_.wait();
  const int64_t ticket = tree_.fetch({}, prompt);
  ASSERT_NE(ticket, 0);
  EXPECT_FALSE(tree_.arrived(ticket));
  EXPECT_EQ(hit(prompt), 0);  // not before all has come
  expect_whole();
  tree_.wait();
  EXPECT_TRUE(tree_.arrived(ticket));
  EXPECT_EQ(tree_.fetch({}, prompt), 0);  // nothing is missing
  EXPECT_EQ(request(prompt, {7}), 288);   // every byte is looked at
  tree_.wait();
  expect_whole();
}

TEST_F(Tiers, WhatIsInTheStoreAloneIsNoHit) {
  request(counting(300));
  tree_.wait();
  ASSERT_TRUE(tree_.make_room(11));
  const PrefixHit miss = tree_.match({}, counting(300));
  EXPECT_EQ(miss.tokens(), 0);
  EXPECT_EQ(miss.stored, 288);
  EXPECT_EQ(miss.matched, 300);
  EXPECT_TRUE(miss.rows.empty());
}

TEST_F(Tiers, MakingRoomWaitsForRowsThatAreBeingCopied) {
  request(counting(300));  // its copies are under way
  EXPECT_TRUE(tree_.make_room(11));
  EXPECT_EQ(tree_.match({}, counting(300)).stored, 288);
}

TEST_F(Tiers, NoRoomNoFetch) {
  request(counting(300));
  tree_.wait();
  ASSERT_TRUE(tree_.make_room(11));
  std::vector<Row> rows;
  for (int i = 0; i < 9; ++i) rows.push_back(pool_.take_row());
  EXPECT_EQ(tree_.fetch({}, counting(300)), 0);
  rows.clear();
  EXPECT_NE(tree_.fetch({}, counting(300)), 0);
  tree_.clear();  // the prefix is forgotten while it comes
  tree_.wait();
  EXPECT_EQ(pool_.free_rows(), 11);
  EXPECT_EQ(hit(counting(300)), 0);
  EXPECT_EQ(store_.free_rows(), store_.rows());
}

class Agents : public PrefixTreeTest {
 protected:
  Agents() : PrefixTreeTest(900, {}) {}
};

// Many conversations on one system prompt, turn by turn in turns, with the default policy: of the tokens that
// a turn shares with what was computed before, almost all are hit.
TEST_F(Agents, HitAlmostAllThatIsReusable) {
  constexpr int kConversations = 16, kTurns = 8;
  const Tokens system = counting(1000);
  std::vector<Tokens> conversations(kConversations, system);
  int64_t reusable = 0, cached = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (int c = 0; c < kConversations; ++c) {
      Tokens& history = conversations[c];
      const int32_t words = 10000 + 1000 * (turn * kConversations + c);
      if (turn + c > 0) reusable += static_cast<int64_t>(history.size());
      history = joined(history, counting(40 + c, words));
      const Tokens answer = counting(30 + turn, words + 500);
      cached += request(history, answer);
      history = joined(history, answer);
    }
  }
  EXPECT_GT(static_cast<double>(cached), 0.95 * static_cast<double>(reusable));
  EXPECT_EQ(tree_.stats().hit_tokens, cached);
  expect_whole();
}

// Random conversations that branch, repeat, are cancelled half-way, reject drafts, fork and run out of rows.
class RandomTraffic : public PrefixTreeTest, public testing::WithParamInterface<int> {
 protected:
  RandomTraffic()
      : PrefixTreeTest(
            60, {.checkpoint_share = 0.4, .checkpoint_spacing = GetParam() % 2 ? 64 : 0, .debug = true},
            GetParam() < 6 ? 0 : 10, GetParam() < 6 ? 0 : 30) {}
};

TEST_P(RandomTraffic, EveryByteIsOfItsPrefix) {
  std::mt19937 random(GetParam());
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  std::vector<Tokens> histories = {{}};
  std::list<CachedSequence> running;
  int64_t hits = 0;
  const auto live = [&] {
    std::vector<int64_t> references(pool_.rows(), 0);
    tree_.check_integrity(references);
    for (const CachedSequence& s : running)
      const_cast<CachedSequence&>(s).cache().count_references(references);
    return references;
  };
  const auto end = [&](std::list<CachedSequence>::iterator s) {
    s->leave();
    histories.push_back({s->tokens().begin(), s->tokens().begin() + s->cache().length()});
    if (histories.size() > 20) histories.erase(histories.begin() + 1 + below(10));
    running.erase(s);
  };
  for (int step = 0; step < 1500; ++step) {
    if (running.size() < 3 && below(3) == 0) {
      Tokens prompt = histories[below(static_cast<int64_t>(histories.size()))];
      if (below(2)) prompt.resize(below(static_cast<int64_t>(prompt.size()) + 1));
      for (int64_t n = 1 + below(200); n > 0; --n) prompt.push_back(static_cast<int32_t>(below(3)));
      if (prompt.size() > 700) prompt.resize(700);
      if (below(2) && tree_.fetch({}, prompt) && below(4)) tree_.wait();
      running.emplace_back(pool_, &tree_, PrefixScope{}, prompt);
      hits += running.back().cached_tokens();
      ASSERT_NO_FATAL_FAILURE(model_.expect(running.back().cache(), running.back().tokens()));
    }
    if (running.empty()) continue;
    auto s = std::next(running.begin(), below(static_cast<int64_t>(running.size())));
    if (s->prefilling()) {
      const CachedSequence::PromptStep next = s->next_prompt_step(1 + below(250));
      if (!s->make_room(next.count, next.undecided)) {
        end(s);  // as a preemption does
        continue;
      }
      model_.step(s->cache(), s->tokens(), s->cache().length() + next.count, next.undecided);
    } else {
      // One token, and drafts of which some are wrong.
      const int64_t drafts = below(14), right = below(drafts + 1), length = s->cache().length();
      if (!s->make_room(1 + drafts, drafts)) {
        end(s);
        continue;
      }
      for (int64_t i = 0; i < 1 + right; ++i) s->append(static_cast<int32_t>(below(3)));
      Tokens guessed = s->tokens();
      guessed.resize(length + 1 + drafts, -1);
      model_.step(s->cache(), guessed, length + 1 + drafts, drafts);
      s->cache().set_length(length + 1 + right);
    }
    tree_.poll();
    s->stepped();
    ASSERT_NO_FATAL_FAILURE(model_.expect(s->cache(), s->tokens()));
    if (!s->prefilling() && below(12) == 0)
      end(s);
    else if (below(40) == 0)
      end(s);  // cancelled
    if (step % 50 == 0) pool_.check_integrity(live());
  }
  EXPECT_GT(hits, 1000);
  EXPECT_GT(tree_.stats().evicted_rows, 50);
  running.clear();
  tree_.wait();
  expect_whole();
  EXPECT_EQ(pool_.free_slots(), pool_.slots());
  EXPECT_TRUE(tree_.make_room(pool_.rows()));
}

INSTANTIATE_TEST_SUITE_P(, RandomTraffic, testing::Range(0, 10));

}  // namespace
}  // namespace perigee
