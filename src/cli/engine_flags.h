// Flags of commands that run an Engine on many requests, and the event logs they may leave.
#pragma once

#include <boost/json/object.hpp>
#include <memory>
#include <optional>
#include <string>

#include "cli/flags.h"
#include "engine/engine.h"
#include "engine/event_log.h"

namespace perigee::cli {

// --async-scheduling, SchedulerOptions::look_ahead.
CLI::Option* add_look_ahead(CLI::App& app, std::optional<bool>& look_ahead);

struct EngineFlags {
  SchedulerOptions scheduler = {.max_num_seqs = 16,
                                .max_num_batched_tokens = 0};  // of tokens 0: as suits the device
  bool prefix_caching = true;
  std::string record;
  std::function<void(StepPhase)> on_phase = {};  // no flag: for measurements

  void add_to(CLI::App& app);
};

// Runner, prefix tree and engine, as flags ask for them.
class EngineRun {
 public:
  EngineRun(const ModelFlags& model, EngineFlags flags);
  // As a log's header tells; `log` gets what the engine does.
  EngineRun(const boost::json::object& header, const std::string& name, int threads, EventLog& log);

  Engine& engine() { return *engine_; }
  Runner& runner() { return runner_; }
  PrefixTree* prefixes() { return prefixes_.get(); }
  const SchedulerOptions& scheduler() const { return scheduler_; }  // as it came out

 private:
  void start(const EngineFlags& flags, EventLog* log);

  EventLog::Sink record_;  // opened before the model is loaded
  Runner runner_;
  SchedulerOptions scheduler_;
  std::unique_ptr<PrefixTree> prefixes_;
  std::unique_ptr<EventLog> log_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace perigee::cli
