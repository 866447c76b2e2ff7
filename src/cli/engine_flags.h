// Flags of commands that run an Engine on many requests, and the event logs they may leave.
#pragma once

#include <boost/json/object.hpp>
#include <memory>
#include <optional>
#include <string>

#include "cache/prefix_cache.h"
#include "cli/flags.h"
#include "cli/tier_flags.h"
#include "engine/engine.h"
#include "engine/event_log.h"

namespace perigee::cli {

// --async-scheduling, SchedulerOptions::look_ahead.
CLI::Option* add_look_ahead(CLI::App& app, std::optional<bool>& look_ahead);

struct EngineFlags {
  SchedulerOptions scheduler = {.max_num_seqs = 16,
                                .max_num_batched_tokens = 0};  // of tokens 0: as suits the device
  bool prefix_caching = true;
  TierFlags tiers = {};
  std::string record = {};
  std::function<void(StepPhase)> on_phase = {};  // no flag: for measurements

  void add_to(CLI::App& app);
  // Those alone that no command has other names for: tiers, --record, --async-scheduling.
  void add_common_to(CLI::App& app);
  // What was left to the device.
  void settle(const Memory& memory);
  PrefixCacheOptions prefix_cache(const ModelFlags& model) const;
};

// The event log that --record asks for.
class Recording {
 public:
  // Opened before the model is loaded: a path that cannot be written should not cost that time.
  explicit Recording(const EngineFlags& flags);
  // The log of an engine on this runner, with its header; null when none was asked for.
  EventLog* start(const ModelFlags& model, const EngineFlags& flags, const Runner& runner);

 private:
  EventLog::Sink sink_;
  std::unique_ptr<EventLog> log_;
};

// Runner, prefix tree and engine, as flags ask for them.
class EngineRun {
 public:
  EngineRun(const ModelFlags& model, EngineFlags flags);
  // As a log's header tells; `log` gets what the engine does.
  EngineRun(const boost::json::object& header, const std::string& name, int threads, EventLog& log);

  Engine& engine() { return *engine_; }
  Runner& runner() { return runner_; }
  PrefixTree* prefixes() { return prefixes_->tree(); }
  const SchedulerOptions& scheduler() const { return scheduler_; }  // as it came out

 private:
  void start(const ModelFlags& model, const EngineFlags& flags, EventLog* log);

  std::optional<Recording> recording_;  // none of a replay
  Runner runner_;
  SchedulerOptions scheduler_;
  std::optional<PrefixCache> prefixes_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace perigee::cli
