// Faults that other engines have had, by the names of reference/field-reports.md B0.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "cache/poison.h"
#include "engine/generate.h"
#include "properties/options.h"
#include "support/models.h"

namespace perigee::test {
namespace {

class FieldReports : public testing::Test {
 protected:
  static Runner runner_for(int64_t tokens, int64_t rows, int64_t slots) {
    const ModelConfig config = small_config("k31");
    const CacheShape shape = cache_shape(config, LatentFormat::kFp8, IndexKeyFormat::kFp8);
    const CachePlan plan(cache_kinds(shape));
    return Runner(config,
                  load_weights("", config, {.format = LoadFormat::kDummy, .seed = 7, .show_progress = false}),
                  on_device({.precision = {.latent = LatentFormat::kFp8},
                             .threads = 2,
                             .cache_rows = CachedSequence::most_rows(plan, tokens) + rows,
                             .sequences = slots}));
  }
};

// What is left of a sequence that has computed `tokens`: the logits of the last and of one more, and the
// state of every KDA layer at the last chunk start.
struct Left {
  std::vector<float> logits, state;
  bool operator==(const Left& o) const {
    return logits.size() == o.logits.size() && state.size() == o.state.size() &&
           std::memcmp(logits.data(), o.logits.data(), logits.size() * sizeof(float)) == 0 &&
           std::memcmp(state.data(), o.state.data(), state.size() * sizeof(float)) == 0;
  }
};

Left compute(Runner& runner, CachedSequence& s, std::span<const int32_t> tokens, int64_t chunk) {
  Left left;
  while (s.prefilling()) {
    const int64_t at = s.cache().length();
    const CachedSequence::PromptStep step = s.next_prompt_step(chunk);
    EXPECT_TRUE(s.make_room(step.count, step.undecided));
    Batch batch;
    batch.add(s.cache(), tokens.subspan(at, step.count), static_cast<int>(step.undecided), 1);
    const auto logits = runner.step(batch);
    left.logits.assign(logits.begin(), logits.end());
    s.stepped();
  }
  // One token more, so that the last full chunk's state is stored, however the prompt was cut.
  const int32_t next = 7;
  s.append(next);
  EXPECT_TRUE(s.make_room(1));
  Batch batch;
  batch.add(s.cache(), std::span(&next, 1), 0, 1);
  const auto logits = runner.step(batch);
  left.logits.insert(left.logits.end(), logits.begin(), logits.end());
  for (int layer = 0; layer < runner.cache_shape().kda_layers; ++layer) {
    const KdaSlot slot = s.cache().slot(layer);
    for (int head = 0; head < runner.cache_shape().kda_heads; ++head) {
      const auto state =
          to_host(runner.memory(), slot.state + head * slot.state_stride, int64_t{kKdaHead} * kKdaHead);
      left.state.insert(left.state.end(), state.begin(), state.end());
    }
  }
  return left;
}

// T1: whatever nobody holds is NaN, from the start and after every return; no answer changes. Every other
// test runs on such a pool too.
TEST_F(FieldReports, T1_StatePoisoning) {
  Runner runner = runner_for(200, 30, 6);
  PrefixTree tree(runner.pool(), {.debug = true});
  const Request r{.prompt = random_tokens(90, 1, 512), .sampling = {.seed = 3}, .max_tokens = 12};
  const auto all_poison = [&](const Row& row) {
    std::vector<uint8_t> want(runner.pool().plan().row_bytes());
    poison(host_memory(), want.data(), static_cast<int64_t>(want.size()));
    return to_host(runner.memory(), row.data(), static_cast<int64_t>(want.size())) == want;
  };
  EXPECT_TRUE(all_poison(runner.pool().take_row()));
  const Generation first = generate(runner, {r}, {.prefixes = &tree})[0];
  for (int round = 0; round < 3; ++round) {
    tree.clear();
    std::vector<Row> rows;
    while (runner.pool().free_rows() > 0) rows.push_back(runner.pool().take_row());
    for (const Row& row : rows) EXPECT_TRUE(all_poison(row));
    rows.clear();
    const Generation again = generate(runner, {r, r, r}, {.prefixes = &tree})[2];
    ASSERT_EQ(again.tokens.size(), first.tokens.size());
    for (size_t i = 0; i < again.tokens.size(); ++i) {
      EXPECT_EQ(again.tokens[i].id, first.tokens[i].id);
      EXPECT_EQ(again.tokens[i].logprob, first.tokens[i].logprob);
    }
  }
}

// T2: lengths around a page, a block and top-k; one shot, every kind of chunk, a hit at every checkpoint, and
// preempted and gone on: final states and logits. Lengths around top-k are for --long.
TEST_F(FieldReports, T2_SplitPointSweep) {
  Runner runner = runner_for(2400, 60, 6);
  const int64_t block = runner.pool().plan().block_tokens();
  const std::vector<int32_t> all = random_tokens(2049, 5, 512);
  for (int64_t length : {int64_t{1}, int64_t{63}, int64_t{64}, int64_t{65}, block - 1, block, block + 1,
                         2 * block + 17, int64_t{2047}, int64_t{2048}, int64_t{2049}}) {
    if (length > 600 && !g_long) continue;
    const std::vector<int32_t> tokens(all.begin(), all.begin() + length);
    CachedSequence whole(runner.pool(), nullptr, {}, tokens);
    const Left want = compute(runner, whole, tokens, length);
    const std::vector<int64_t> chunks =
        length > 600 ? std::vector<int64_t>{100, 512} : std::vector<int64_t>{7, 16, 61};
    for (int64_t chunk : chunks) {
      CachedSequence cut(runner.pool(), nullptr, {}, tokens);
      EXPECT_EQ(compute(runner, cut, tokens, chunk), want) << length << " in chunks of " << chunk;
    }
    PrefixTree tree(runner.pool(), {.checkpoint_share = 0.6,
                                    .checkpoint_spacing = std::max<int64_t>(16, length / 64 * 16),
                                    .debug = true});
    {
      CachedSequence first(runner.pool(), &tree, {}, tokens);
      EXPECT_EQ(compute(runner, first, tokens, 100), want) << length;
      first.leave();
    }
    for (int64_t reusable = 1; reusable <= length; reusable += std::max<int64_t>(16, length / 3)) {
      CachedSequence hit(runner.pool(), &tree, {}, tokens, reusable);
      EXPECT_EQ(compute(runner, hit, tokens, 100), want)
          << length << " after a hit of " << hit.cached_tokens();
    }
    tree.clear();
    {
      CachedSequence begun(runner.pool(), &tree, {}, tokens);
      const CachedSequence::PromptStep step = begun.next_prompt_step(std::max<int64_t>(1, length / 2));
      ASSERT_TRUE(begun.make_room(step.count, step.undecided));
      Batch batch;
      batch.add(begun.cache(), std::span(tokens).first(step.count), static_cast<int>(step.undecided), 0);
      runner.step(batch);
      begun.stepped();
      begun.leave();
    }
    CachedSequence resumed(runner.pool(), &tree, {}, tokens);
    EXPECT_EQ(resumed.cached_tokens() > 0, length > 32) << length;
    EXPECT_EQ(compute(runner, resumed, tokens, length), want) << length << " resumed";
  }
}

// T9: one request as the only one, and as the first, the middle and the last of 44 and of 257.
TEST_F(FieldReports, T9_BatchPositionFuzz) {
  Runner runner = runner_for(60, 2000, 260);
  const Request r{
      .prompt = random_tokens(20, 1, 512), .sampling = {.seed = 3}, .max_tokens = 4, .top_logprobs = 4};
  const Generation want = generate(runner, {r})[0];
  for (int batch : {44, 257}) {
    for (int place : {0, batch / 2, batch - 1}) {
      std::vector<Request> requests;
      for (int i = 0; i < batch; ++i)
        requests.push_back(
            {.prompt = random_tokens(1 + i % 9, 100 + i, 512), .sampling = {.seed = 9}, .max_tokens = 6});
      requests[place] = r;
      const Generation got =
          generate(runner, requests,
                   {.scheduler = {.max_num_seqs = batch, .max_num_batched_tokens = 300 + place}})[place];
      ASSERT_EQ(got.tokens.size(), want.tokens.size());
      for (size_t i = 0; i < got.tokens.size(); ++i) {
        EXPECT_EQ(got.tokens[i].id, want.tokens[i].id) << place << " of " << batch;
        EXPECT_EQ(std::memcmp(&got.tokens[i].logprob, &want.tokens[i].logprob, sizeof(float)), 0);
        EXPECT_EQ(got.tokens[i].top, want.tokens[i].top);
      }
    }
  }
}

// T10: more is asked for than there is room; each request ends or is refused, and nothing is held after.
TEST_F(FieldReports, T10_AdmissionProof) {
  Runner runner = runner_for(120, 4, 3);
  PrefixTree tree(runner.pool(), {.debug = true});
  Engine engine(runner, &tree,
                {.scheduler = {.max_num_seqs = 3, .max_num_batched_tokens = 64}, .max_waiting = 6});
  std::mt19937 random(7);
  int64_t taken = 0, busy = 0, never = 0, ended = 0, idle_steps = 0;
  const auto listen = [&] {
    for (const Event& e : engine.take_events()) {
      ended += e.finish == FinishReason::kStop || e.finish == FinishReason::kLength;
      EXPECT_NE(e.finish, FinishReason::kError) << e.error;
    }
  };
  for (int i = 0; i < 150; ++i) {
    Request r{.prompt = random_tokens(1 + static_cast<int>(random() % 100), random() % 9, 512),
              .sampling = {.seed = 1},
              .max_tokens = 1 + static_cast<int>(random() % 20),
              .n = 1 + static_cast<int>(random() % 2)};
    if (i % 10 == 9) r.max_tokens = 100000;  // never fits
    const int n = r.n;
    try {
      engine.submit(std::move(r));
      taken += n;
    } catch (const Error& e) {
      (e.code() == ErrorCode::kBusy ? busy : never) += 1;
      EXPECT_TRUE(e.code() == ErrorCode::kBusy || e.code() == ErrorCode::kBadRequest) << e.what();
    }
    if (random() % 3 == 0) engine.step();
    listen();
  }
  for (; engine.step(); ++idle_steps) {
    listen();
    ASSERT_LT(idle_steps, 5000) << "requeued for ever";
  }
  listen();
  EXPECT_EQ(ended, taken);
  EXPECT_GT(busy, 10);
  EXPECT_EQ(never, 15);
  EXPECT_EQ(runner.pool().free_slots(), runner.pool().slots());
}

}  // namespace
}  // namespace perigee::test
