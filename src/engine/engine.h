// Engine: requests in, events out. It owns the requests between the two and ties Scheduler, Runner, CachePool
// and PrefixTree together. What one request gets does not depend on the others, on chunking, reuse,
// preemption or drafts (numerics.md); these decide only when.
//
//   Engine engine(runner, &prefixes);
//   const RequestId id = engine.submit({.prompt = tokens});
//   while (engine.step())
//     for (const Event& event : engine.take_events()) …
//
// One thread calls everything. Reads no clock: what happens at a step follows from what was submitted and
// cancelled before it, so an event log replays to the same steps (event_log.h).
//
// Looking ahead (SchedulerOptions::look_ahead): where all do nothing but decode, step() begins to compute the
// step after before it waits for this one's tokens, so that a device need not wait for the host. An answer
// that turns out to have ended, or is cancelled, has then computed a token too many: it is dropped like a
// rejected draft, and nobody hears of it.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "cache/prefix_tree.h"
#include "engine/request.h"
#include "engine/runner.h"
#include "engine/scheduler.h"

namespace perigee {

class EventLog;

// What the time since the last phase went into: for measurements, since the engine reads no clock. Between
// kStart and kDone a step has the others once, or, when it looks ahead, more often.
enum class StepPhase {
  kStart,      // nothing of this step
  kScheduled,  // a batch was decided
  kComputed,   // the model was run, or waited for
  kDone        // requests have moved on
};

// A line on stderr.
void print_fault(const std::string& fault);

struct EngineOptions {
  SchedulerOptions scheduler = {};
  size_t max_waiting = 1 << 20;  // branches that may wait; submit() refuses more
  std::function<void(StepPhase)> on_phase = {};
  // Hears of a cache that contradicts itself while no request is here that could end with the error.
  std::function<void(const std::string&)> on_fault = print_fault;
  EventLog* log = nullptr;  // records what comes in and what each step computed; outlives the engine
};

class Engine {
 public:
  // Without a tree every request computes its whole prompt. The runner and the tree outlive the engine; the
  // runner's pool is the engine's alone. Throws Error{kUsage} naming an option that cannot be.
  Engine(Runner& runner, PrefixTree* prefixes = nullptr, EngineOptions options = {});
  ~Engine();

  // Takes a request in. Throws Error{kBadRequest} naming the field, its value and the remedy for one that can
  // never run, and Error{kBusy} when too many wait.
  RequestId submit(Request request);
  // Throws what submit() would for the request itself, and takes nothing in.
  void validate(const Request& request) const;

  // Ends a request, or one of its branches; at the latest at the next step. Unknown and finished ones are
  // ignored.
  void cancel(RequestId request, int branch = kAllBranches);
  static constexpr int kAllBranches = -1;

  // Forgets all cached prefixes; false while a request is here, and nothing is done.
  bool reset_prefix_cache();

  // Computes one step; false when there is nothing to do. Errors inside a step end the requests concerned.
  bool step();
  bool idle() const { return scheduler_.idle(); }
  std::vector<Event> take_events();

  // Prompt tokens that branch 0 has computed (or found), and how many there are; nothing once it is finished.
  struct Progress {
    int64_t computed = 0, prompt = 0;
  };
  std::optional<Progress> progress(RequestId request) const;

  struct Stats {
    int64_t steps = 0;             // computed
    int64_t steps_ahead = 0;       // begun before the tokens of the step before were known
    int64_t dropped_tokens = 0;    // computed ahead for answers that had ended
    int64_t prompt_tokens = 0;     // computed, those of recomputed sequences too
    int64_t generated_tokens = 0;  // sampled and kept
    int64_t cached_tokens = 0;     // of prompts, found in the tree
    int64_t draft_tokens = 0, accepted_draft_tokens = 0;
    int64_t preemptions = 0;
    int64_t failed = 0;  // branches ended by an error
    int64_t running = 0, waiting = 0;
    int64_t rows_in_use = 0;  // held by sequences, not by the tree alone
    int64_t rows = 0;         // of the pool
  };
  Stats stats() const;
  const Runner& runner() const { return runner_; }

 private:
  using Outcome = Runner::Outcome;

  void phase(StepPhase phase) const;
  void launch(StepPlan plan);
  bool wants_logits(const StepPlan& plan) const;
  StepPlan plan_ahead() const;
  void finish_rows(const ScheduledRows& rows, const Outcome& outcome);
  void report_prompt(const ScheduledRows& rows, const Outcome& outcome);
  std::vector<Sequence*> fork(const ScheduledRows& rows);
  void append(Sequence& sequence, std::span<const int32_t> drafts, int first_logit, const Outcome& outcome);
  std::span<const float> logits_row(int logit, const Outcome& outcome) const;
  GeneratedToken raw(int logit, int32_t token, int alternatives, const Outcome& outcome) const;
  GeneratedToken describe(const Sequence& sequence, int logit, const Outcome& outcome) const;
  FinishReason reason_to_finish(const Sequence& sequence) const;
  bool reaches_length(const Sequence& sequence, int64_t tokens) const;
  void finish(Sequence& sequence, FinishReason reason, const std::string& error = {});
  void drop_ahead(Sequence& sequence);
  void fail_all(const std::string& error);
  void check_cache() const;

  Runner& runner_;
  PrefixTree* prefixes_;
  EngineOptions options_;
  Scheduler scheduler_;
  std::deque<StepPlan> under_way_;  // launched, not yet waited for; one at most between calls of step()
  RequestId next_id_ = 1;
  std::vector<Event> events_;
  Stats stats_;
};

}  // namespace perigee
