// Scheduler: decides the next Batch. Deterministic: a function of what was added and removed before.
//
// Policy, in this order in every step:
//   1. Waiting sequences are admitted by (priority, arrival) while one more fits: a slot, and rows for what
//      is left of its prompt beside what running prompts still need. Nobody overtakes the first, so it waits
//      for no more than what runs; it takes the place of running ones of lower priority. One whose prompt
//      begins with what a running one is about to compute waits for that, instead of computing it too.
//   2. Every sequence past its prompt computes its last token and its drafts.
//   3. What is left of the token budget goes to prompts: half to the one with the fewest tokens left, so that
//      a short one need not wait for a long one, the rest in order of (priority, arrival).
//   4. When rows run out, the last by (priority, arrival) makes room: what it computed stays in the prefix
//      tree, and it waits again. The first can always go on, so everything that fits alone finishes.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/device_defaults.h"
#include "engine/sequence.h"
#include "model/step.h"

namespace perigee {

// Proposes at most `most` tokens that may follow `tokens`. Bad proposals cost time, never change an answer.
using Drafter = std::function<std::vector<int32_t>(std::span<const int32_t> tokens, int most)>;

struct SchedulerOptions {
  int max_num_seqs = 64;             // that run at once
  int max_num_batched_tokens = 512;  // in one step; ≥ max_num_seqs
  bool wait_for_copies =
      false;  // of the tree's store in every step, so that steps do not depend on its speed
  Drafter drafter = nullptr;
  int max_drafts = 0;  // per sequence and step, ≤ kMostDrafts
  // Whether ahead() gives steps; the engine decides when it is not said.
  std::optional<bool> look_ahead = std::nullopt;
};
// A slot keeps the 16 rows of an open chunk, 3 conv inputs before it, and these.
constexpr int kMostDrafts = KdaSlot::kRing - kChunk - kConvInputs;

// What one sequence computes in a step, and which rows of the step's logits are its own.
struct ScheduledRows {
  Sequence* sequence = nullptr;  // null: ended since
  RequestId request = 0;
  int branch = 0;
  int64_t start = 0;  // position of its first row
  int tokens = 0;
  bool samples = false;         // the last 1 + drafts rows give tokens
  std::vector<int32_t> drafts;  // the last rows: tokens that may follow the one before
  int first_logit = 0;          // of `logits` rows, those of its last tokens
  int logits = 0;
  int forks = 0;             // branches that start here, each with one more logit row …
  int first_fork_logit = 0;  // … from here on, all of the last token
};

struct StepPlan {
  Batch batch;
  std::vector<ScheduledRows> rows;
  bool empty() const { return rows.empty(); }
};

class Scheduler {
 public:
  Scheduler(CachePool& pool, PrefixTree* prefixes, SchedulerOptions options);

  void add(std::unique_ptr<Sequence> sequence);  // waits after those of its (priority, request, branch)
  // A branch that runs already, since it was forked; its place is beside its request.
  void add_running(std::unique_ptr<Sequence> sequence);
  // Hands out a sequence that is finished or given up; its rows go back when it is destroyed.
  std::unique_ptr<Sequence> remove(Sequence& sequence);

  // The next step; empty when nothing can run, which is only when nothing waits.
  StepPlan next();
  // The step after `before`, which is being computed: one more row for each of its sequences that goes_on
  // after the token it is about to get, as a draft, since that token may be its last. Empty unless nothing in
  // the step hangs on the tokens of `before`: all running sequences decode in it, without drafts, active
  // processors or branches to start, nobody could be admitted, and no rows need be freed.
  StepPlan ahead(const StepPlan& before, const std::function<bool(const Sequence&)>& goes_on) const;

  bool idle() const { return running_.empty() && waiting_.empty(); }
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const;  // branches, those that start with another's prompt too
  int64_t preemptions() const { return preemptions_; }
  // Every sequence of a request, waiting or running.
  std::vector<Sequence*> find(RequestId request) const;
  void for_each_running(const std::function<void(Sequence&)>& visit) const;

 private:
  using Queue = std::list<std::unique_ptr<Sequence>>;  // by (priority, request, branch)

  struct Wish;

  void admit();
  int64_t places() const;  // for more running sequences
  bool try_admit(Sequence& sequence);
  bool fetching(Sequence& sequence);
  bool prefix_under_way(const Sequence& sequence);
  bool fits(const CachedSequence& cached) const;
  void preempt_last();
  std::vector<int32_t> drafts_for(const Sequence& sequence, int64_t most) const;
  std::vector<Wish> wishes() const;
  bool make_room(const Wish& wish);
  void schedule(StepPlan& plan, Wish wish);
  void plan_forks(StepPlan& plan) const;

  CachePool& pool_;
  PrefixTree* prefixes_;
  SchedulerOptions options_;
  Queue waiting_, running_;
  bool full_ = false;  // the first waiting sequence did not fit, and nothing has left since
  int64_t preemptions_ = 0;
};

}  // namespace perigee
