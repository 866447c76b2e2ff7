#include "cli/engine_flags.h"

#include <boost/json.hpp>

#include "base/error.h"
#include "cli/validators.h"

namespace perigee::cli {

namespace {

constexpr int kMostSeqs = 1 << 16, kMostBatchedTokens = 1 << 20;

// What the header says of the model and the engine: one list for writing and reading. The cache is told in
// rows, since its default depends on the machine.
template <typename M, typename E, typename F>
void for_each_field(M& model, E& engine, const F& field) {
  field("model", model.model);
  field("load_format", model.load_format);
  field("override_config", model.override_config);
  field("dummy_seed", model.dummy_seed);
  field("kv_cache_dtype", model.numerics.kv_cache_dtype);
  field("index_cache_dtype", model.numerics.index_cache_dtype);
  field("lanes", model.numerics.lanes);
  field("attention_lanes", model.numerics.attention_lanes);
  field("moe_lanes", model.numerics.moe_lanes);
  field("debug_cache", model.debug_cache);
  field("max_num_seqs", engine.scheduler.max_num_seqs);
  field("max_num_batched_tokens", engine.scheduler.max_num_batched_tokens);
  field("prefix_caching", engine.prefix_caching);
  field("async_scheduling", engine.scheduler.look_ahead);
  field("kv_offloading_size", engine.tiers.memory);
  field("kv_offloading_file", engine.tiers.file);
  field("kv_offloading_file_size", engine.tiers.file_size);
}

boost::json::object header_of(const ModelFlags& model, const EngineFlags& engine, const Runner& runner) {
  boost::json::object header{{"numerics", runner.numerics().digest},
                             {"cache_rows", runner.pool().rows()},
                             {"cache_slots", runner.pool().slots()}};
  for_each_field(model, engine,
                 [&](const char* name, const auto& value) { header[name] = boost::json::value_from(value); });
  return header;
}

template <typename T>
T field_of(const boost::json::object& header, const std::string& log, const char* name) {
  const boost::json::value* found = header.if_contains(name);
  if (!found) fail(ErrorCode::kBadFile, "{}: the header has no \"{}\"; record the log anew", log, name);
  const auto value = boost::json::try_value_to<T>(*found);
  if (!value)
    fail(ErrorCode::kBadFile, "{}: the header's \"{}\" is {}", log, name, boost::json::serialize(*found));
  return *value;
}

struct FromHeader {
  ModelFlags model;
  EngineFlags engine;
  int64_t slots = 0;
};

FromHeader flags_of(const boost::json::object& header, const std::string& log, int threads) {
  FromHeader flags;
  for_each_field(flags.model, flags.engine, [&](const char* name, auto& value) {
    value = field_of<std::decay_t<decltype(value)>>(header, log, name);
  });
  flags.model.threads = threads;
  flags.model.cache_rows = field_of<int64_t>(header, log, "cache_rows");
  flags.slots = field_of<int64_t>(header, log, "cache_slots");
  return flags;
}

Runner load_recorded(const FromHeader& flags) { return flags.model.load(flags.slots); }

}  // namespace

CLI::Option* add_look_ahead(CLI::App& app, std::optional<bool>& look_ahead) {
  return app.add_flag_function(
      "--async-scheduling,!--no-async-scheduling", [&look_ahead](int64_t times) { look_ahead = times > 0; },
      "begin a decoding step before the tokens of the one before are known; on with a GPU when not given");
}

void EngineFlags::add_to(CLI::App& app) {
  const auto group = [](CLI::Option* option) { option->group("Engine"); };
  group(app.add_option("--max-num-seqs", scheduler.max_num_seqs, "answers in progress at once")
            ->transform(whole_number(1, kMostSeqs)));
  group(app.add_option(
               "--max-num-batched-tokens", scheduler.max_num_batched_tokens,
               "tokens computed in one step, decoded ones first; 512 on a CPU, 4096 on a GPU when not given")
            ->transform(whole_number(1, kMostBatchedTokens)));
  group(app.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", prefix_caching,
                     "start from what requests before have computed (on)"));
  add_common_to(app);
}

void EngineFlags::add_common_to(CLI::App& app) {
  add_look_ahead(app, scheduler.look_ahead)->group("Engine");
  app.add_option("--record", record, "write an event log that `perigee replay` reproduces")
      ->check(not_empty())
      ->group("Engine");
  tiers.add_to(app);
}

PrefixCacheOptions EngineFlags::prefix_cache(const ModelFlags& model) const {
  return {.enabled = prefix_caching, .tree = {.debug = model.debug_cache}, .tiers = tiers.options()};
}

void EngineFlags::settle(const Memory& memory) {
  scheduler.max_num_batched_tokens =
      batched_tokens(scheduler.max_num_batched_tokens, memory, scheduler.max_num_seqs);
  if (!scheduler.look_ahead) scheduler.look_ahead = looks_ahead(memory);
}

Recording::Recording(const EngineFlags& flags)
    : sink_(flags.record.empty() ? nullptr : EventLog::to_file(flags.record)) {}

EventLog* Recording::start(const ModelFlags& model, const EngineFlags& flags, const Runner& runner) {
  if (sink_) log_ = std::make_unique<EventLog>(sink_, header_of(model, flags, runner));
  return log_.get();
}

EngineRun::EngineRun(const ModelFlags& model, EngineFlags flags)
    : recording_(flags),
      runner_(model.load(flags.scheduler.max_num_seqs, flags.scheduler.max_num_batched_tokens)) {
  flags.settle(runner_.memory());
  start(model, flags, recording_->start(model, flags, runner_));
}

EngineRun::EngineRun(const boost::json::object& header, const std::string& name, int threads, EventLog& log)
    : runner_(load_recorded(flags_of(header, name, threads))) {
  const FromHeader flags = flags_of(header, name, threads);
  const std::string recorded = field_of<std::string>(header, name, "numerics");
  if (recorded != runner_.numerics().digest) {
    fail(ErrorCode::kBadFile,
         "{}: recorded under the numerics identity {}, but this model and build have {}; replay with the "
         "same weights "
         "and flags",
         name, recorded, runner_.numerics().digest);
  }
  start(flags.model, flags.engine, &log);
}

void EngineRun::start(const ModelFlags& model, const EngineFlags& flags, EventLog* log) {
  scheduler_ = flags.scheduler;
  prefixes_.emplace(runner_.pool(), flags.prefix_cache(model));
  engine_ = std::make_unique<Engine>(
      runner_, prefixes_->tree(),
      EngineOptions{.scheduler = flags.scheduler, .on_phase = flags.on_phase, .log = log});
}

}  // namespace perigee::cli
