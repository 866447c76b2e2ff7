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
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "cache/prefix_tree.h"
#include "engine/request.h"
#include "engine/runner.h"
#include "engine/scheduler.h"

namespace perigee {

class EventLog;

// Where a step stands: for measurements, since the engine reads no clock.
enum class StepPhase {
  kStart,      // nothing done
  kScheduled,  // the batch is decided
  kComputed,   // the model has run and tokens are drawn
  kDone        // requests have moved on
};

struct EngineOptions {
  SchedulerOptions scheduler = {};
  size_t max_waiting = 1 << 20;  // branches that may wait; submit() refuses more
  std::function<void(StepPhase)> on_phase = {};
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
  using Sampled = std::vector<Runner::Sampled>;

  Sampled sample(const StepPlan& plan);
  void finish_rows(const ScheduledRows& rows, const Sampled& sampled);
  void report_prompt(const ScheduledRows& rows, const Sampled& sampled);
  std::vector<Sequence*> fork(const ScheduledRows& rows);
  void append(Sequence& sequence, std::span<const int32_t> drafts, int first_logit, const Sampled& sampled);
  GeneratedToken describe(const Sequence& sequence, int logit, int32_t token, const Runner::Sampled& sampled,
                          int alternatives) const;
  FinishReason reason_to_finish(const Sequence& sequence) const;
  void finish(Sequence& sequence, FinishReason reason, const std::string& error = {});
  void fail_all(const std::string& error);
  void check_cache() const;

  Runner& runner_;
  PrefixTree* prefixes_;
  EngineOptions options_;
  Scheduler scheduler_;
  RequestId next_id_ = 1;
  std::vector<Event> events_;
  Stats stats_;
};

}  // namespace perigee
