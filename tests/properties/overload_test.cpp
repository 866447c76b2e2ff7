// Overload: for as long as it is told to run, more is asked of an engine than it has room for, of every kind
// that it takes. Every request finishes or is refused, nothing is held after, and memory does not grow.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <chrono>
#include <optional>

#include "properties/options.h"
#include "properties/traffic.h"
#include "support/models.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
extern "C" size_t __sanitizer_get_current_allocated_bytes();  // GCC 12 has the function, but no header of it
#endif

namespace perigee::test {
namespace {

// What is allocated and not yet freed.
int64_t heap_bytes() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return static_cast<int64_t>(__sanitizer_get_current_allocated_bytes());
#else
  return static_cast<int64_t>(mallinfo2().uordblks);
#endif
}

struct Count {
  int64_t taken = 0, busy = 0, never = 0;           // branches, requests, requests
  int64_t finished = 0, cancelled = 0, failed = 0;  // branches
  int64_t ended() const { return finished + cancelled + failed; }
};

class Overload {
 public:
  Overload() : runner_(make_runner()) {
    const int64_t row_bytes = runner_.pool().plan().row_bytes();
    store_.emplace(runner_.pool(),
                   RowStoreOptions{.memory_bytes = 12 * row_bytes,
                                   .file = testing::TempDir() + "overload-" + std::to_string(getpid()),
                                   .file_bytes = 12 * row_bytes});
    tree_.emplace(runner_.pool(), PrefixTreeOptions{.checkpoint_spacing = 64}, &*store_);
    engine_.emplace(runner_, &*tree_,
                    EngineOptions{.scheduler = {.max_num_seqs = 4,
                                                .max_num_batched_tokens = 48,
                                                .drafter = random_drafter(1, vocab(), nothing_known_),
                                                .max_drafts = 3},
                                  .max_waiting = 24});
  }

  // About 120 requests, three a step, some of them cancelled at once or later; then all that was taken runs
  // to its end.
  void round() {
    Prompts prompts;
    std::vector<RequestId> ids;
    for (int i = 0; i < 120; ++i) {
      Request r = random_request(random_, prompts, vocab());
      if (random_() % 16 == 0) r.max_tokens = 1 << 20;  // more than all the cache holds
      const int n = r.n;
      try {
        ids.push_back(engine_->submit(std::move(r)));
        count_.taken += n;
      } catch (const Error& e) {
        ASSERT_TRUE(e.code() == ErrorCode::kBusy || e.code() == ErrorCode::kBadRequest) << e.what();
        ++(e.code() == ErrorCode::kBusy ? count_.busy : count_.never);
      }
      if (!ids.empty() && random_() % 8 == 0)
        engine_->cancel(ids[random_() % ids.size()], static_cast<int>(random_() % 4) - 1);
      if (random_() % 3 == 0) step();
    }
    for (int left = 20000; step();) ASSERT_GT(--left, 0) << "requeued for ever";
    ASSERT_EQ(count_.ended(), count_.taken);
    ASSERT_EQ(runner_.pool().free_slots(), runner_.pool().slots());
    tree_->wait();  // rows on their way to a tier are in use
    ASSERT_EQ(engine_->stats().rows_in_use, 0);
  }

  // Nothing is cached after it, in the pool or in a tier.
  void forget() {
    tree_->clear();
    tree_->wait();
    ASSERT_EQ(runner_.pool().free_rows(), runner_.pool().rows());
    ASSERT_EQ(store_->free_rows(), store_->rows());
  }

  const Count& count() const { return count_; }
  Engine::Stats stats() const { return engine_->stats(); }

 private:
  static Runner make_runner() {
    const ModelConfig config = small_config("k31");
    const CacheShape shape = cache_shape(config, LatentFormat::kFp8, IndexKeyFormat::kFp8);
    return Runner(config,
                  load_weights("", config, {.format = LoadFormat::kDummy, .seed = 7, .show_progress = false}),
                  on_device({.precision = {.latent = LatentFormat::kFp8},
                             .threads = 2,
                             .cache_rows = CachedSequence::most_rows(CachePlan(cache_kinds(shape)), 160) + 12,
                             .sequences = 4}));
  }
  int vocab() const { return runner_.config().vocab_size; }

  bool step() {
    const bool stepped = engine_->step();
    for (const Event& e : engine_->take_events()) {
      count_.finished += e.finish == FinishReason::kStop || e.finish == FinishReason::kLength;
      count_.cancelled += e.finish == FinishReason::kCancelled;
      if (e.finish != FinishReason::kError) continue;
      ++count_.failed;
      ADD_FAILURE() << e.error;
    }
    return stepped;
  }

  Runner runner_;
  std::optional<RowStore> store_;
  std::optional<PrefixTree> tree_;
  std::vector<std::vector<int32_t>> nothing_known_;
  std::optional<Engine> engine_;
  std::mt19937_64 random_{5};
  Count count_;
};

TEST(Overload, EveryRequestEndsAndMemoryIsFlat) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration<double>(g_overload_seconds);
  Overload overload;
  constexpr int kWarm = 3;
  constexpr int64_t kSlack = int64_t{1} << 20;
  int64_t most = 0, heap = 0;
  int rounds = 0;
  for (; rounds < kWarm + 2 || Clock::now() < until; ++rounds) {
    overload.round();
    if (HasFatalFailure()) return;
    overload.forget();
    if (HasFatalFailure()) return;
    heap = heap_bytes();
    if (rounds < kWarm) most = std::max(most, heap);
    ASSERT_LE(heap, most + kSlack) << "bytes on the heap after round " << rounds << ", of at most " << most
                                   << " after the first " << kWarm;
  }
  const Count& c = overload.count();
  EXPECT_GT(c.busy, 10);
  EXPECT_GT(c.never, 0);
  EXPECT_GT(c.finished, 100);
  EXPECT_GT(c.cancelled, 10);
  EXPECT_GT(overload.stats().preemptions, 0);
  std::printf(
      "%d rounds, %ld steps, %ld preemptions: %ld answers finished, %ld cancelled; %ld requests refused as "
      "too "
      "many, %ld as too long; %ld heap bytes after round %d, %ld at the end\n",
      rounds, overload.stats().steps, overload.stats().preemptions, c.finished, c.cancelled, c.busy, c.never,
      most, kWarm, heap);
}

}  // namespace
}  // namespace perigee::test
