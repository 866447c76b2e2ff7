// perigee bench throughput: many requests through the engine, as fast as it takes them.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/philox.h"
#include "base/progress.h"
#include "cli/bench.h"
#include "cli/bench_report.h"
#include "cli/engine_flags.h"
#include "cli/json.h"
#include "cli/validators.h"

namespace perigee::cli {

namespace {

using Clock = std::chrono::steady_clock;
using Tokens = std::vector<int32_t>;

struct Flags {
  ModelFlags model;
  EngineFlags engine;
  std::string workload = "agent", out;
  int conversations = 16, turns = 4, prefix_len = 512, input_len = 64, output_len = 32, compared = 8;
  bool json = false;
};

// Random tokens, a function of their place in the workload.
Tokens made_up(int count, uint64_t conversation, uint64_t turn, int vocab) {
  Tokens out;
  for (int i = 0; i < count; ++i)
    out.push_back(static_cast<int32_t>(random_words(conversation, 2, turn, static_cast<uint32_t>(i))[0] %
                                       static_cast<uint32_t>(vocab)));
  return out;
}

// What every turn of every conversation asks. Each turn's prompt is all that was said before and new text:
//   random  nothing in common, one turn
//   prefix  one shared prefix, one turn
//   agent   one shared prefix (the system prompt), and turns
class Workload {
 public:
  Workload(const Flags& f, int vocab) : f_(f), vocab_(vocab) {
    if (f.workload != "random") prefix_ = made_up(f.prefix_len, 0, 0, vocab);
    histories_.resize(f.conversations, prefix_);
    turns_ = f.workload == "agent" ? f.turns : 1;
  }
  int turns() const { return turns_; }
  int requests() const { return f_.conversations * turns_; }

  // The next prompt of a conversation, and how much of it was computed before.
  Request next(int conversation, int turn) {
    Tokens& history = histories_[conversation];
    const size_t known = turn > 0 || conversation > 0 ? history.size() : 0;
    reusable_ += static_cast<int64_t>(known);
    for (int32_t t : made_up(f_.input_len, 1 + conversation, turn, vocab_)) history.push_back(t);
    return {.prompt = history,
            .sampling = {.seed = static_cast<uint64_t>(conversation)},
            .max_tokens = f_.output_len};
  }
  void answered(int conversation, const GeneratedToken& token) {
    histories_[conversation].push_back(token.id);
  }
  int64_t reusable() const { return reusable_; }

 private:
  const Flags& f_;
  int vocab_, turns_;
  Tokens prefix_;
  std::vector<Tokens> histories_;
  int64_t reusable_ = 0;
};

// Milliseconds of the parts of every step.
class StepTimes {
 public:
  void operator()(StepPhase phase) {
    const auto now = Clock::now();
    const double ms = std::chrono::duration<double, std::milli>(now - last_).count();
    last_ = now;
    if (phase == StepPhase::kScheduled || phase == StepPhase::kDone) overhead_ += ms;
    if (phase == StepPhase::kComputed) model_ += ms;
    if (phase == StepPhase::kDone) {
      steps.push_back(std::exchange(model_, 0) + overhead_);
      overheads.push_back(std::exchange(overhead_, 0));
    }
  }
  std::vector<double> steps, overheads;

 private:
  Clock::time_point last_;
  double overhead_ = 0, model_ = 0;
};

struct Result {
  double seconds = 0, occupancy = 0, rows_used = 0;
  int64_t output_tokens = 0, prompt_tokens = 0, cached_tokens = 0, reusable_tokens = 0, preemptions = 0;
  int64_t steps_ahead = 0, dropped_tokens = 0;
  StepTimes times;
  std::vector<Request> requests;  // as they were submitted
};

// Every conversation's next turn as soon as the one before has ended.
Result run_workload(const Flags& f, EngineRun& run, StepTimes& times) {
  Engine& engine = run.engine();
  Result result;
  Workload workload(f, run.runner().config().vocab_size);
  std::map<RequestId, std::pair<int, int>> going;  // conversation, turn
  const auto submit = [&](int conversation, int turn) {
    result.requests.push_back(workload.next(conversation, turn));
    result.prompt_tokens += static_cast<int64_t>(result.requests.back().prompt.size());
    going[engine.submit(result.requests.back())] = {conversation, turn};
  };
  const auto start = Clock::now();
  for (int c = 0; c < f.conversations; ++c) submit(c, 0);
  Progress progress("requests", workload.requests(), 1, "done");
  double running = 0, rows = 0;
  int64_t steps = 0;
  while (engine.step()) {
    const Engine::Stats stats = engine.stats();
    running += static_cast<double>(stats.running);
    rows += static_cast<double>(stats.rows_in_use) / static_cast<double>(stats.rows);
    ++steps;
    for (const Event& e : engine.take_events()) {
      const auto [conversation, turn] = going.at(e.request);
      for (const GeneratedToken& t : e.tokens) workload.answered(conversation, t);
      result.output_tokens += static_cast<int64_t>(e.tokens.size());
      if (e.finish == FinishReason::kError) fail(ErrorCode::kInternal, "{}", e.error);
      if (e.finish == FinishReason::kNone) continue;
      result.cached_tokens += e.cached_tokens;
      going.erase(e.request);
      progress.advance(1);
      if (turn + 1 < workload.turns()) submit(conversation, turn + 1);
    }
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  result.reusable_tokens = workload.reusable();
  const Engine::Stats stats = engine.stats();
  result.preemptions = stats.preemptions;
  result.steps_ahead = stats.steps_ahead;
  result.dropped_tokens = stats.dropped_tokens;
  result.occupancy = running / static_cast<double>(steps) / f.engine.scheduler.max_num_seqs;
  result.rows_used = rows / static_cast<double>(steps);
  result.times = times;
  return result;
}

// Output tokens per second of some of the same requests, evenly from the whole run, when nothing is reused.
double without_cache(const Flags& f, EngineRun& run, const std::vector<Request>& all) {
  Engine engine(run.runner(), nullptr, {.scheduler = run.scheduler()});
  const size_t n = std::min<size_t>(all.size(), f.compared);
  for (size_t i = 0; i < n; ++i) engine.submit(all[(2 * i + 1) * all.size() / (2 * n)]);
  int64_t tokens = 0;
  Progress progress("without reuse", static_cast<int64_t>(n), 1, "requests");
  const auto start = Clock::now();
  while (engine.step()) {
    for (const Event& e : engine.take_events()) {
      tokens += static_cast<int64_t>(e.tokens.size());
      if (e.finish != FinishReason::kNone) progress.advance(1);
    }
  }
  return static_cast<double>(tokens) / std::chrono::duration<double>(Clock::now() - start).count();
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

int run_throughput(Flags f) {
  if (f.workload == "random") f.prefix_len = 0;
  StepTimes times;
  f.engine.on_phase = [&](StepPhase phase) { times(phase); };
  EngineRun run(f.model, f.engine);
  BenchReport report(f.model.model, run.runner().threads(), run.runner().kernels(),
                     run.runner().numerics().digest);
  report.settings = {{"workload", f.workload},
                     {"conversations", f.conversations},
                     {"turns", f.workload == "agent" ? f.turns : 1},
                     {"prefix_len", f.prefix_len},
                     {"input_len", f.input_len},
                     {"output_len", f.output_len},
                     {"max_num_seqs", f.engine.scheduler.max_num_seqs},
                     {"max_num_batched_tokens", run.scheduler().max_num_batched_tokens},
                     {"prefix_caching", f.engine.prefix_caching},
                     {"async_scheduling", run.scheduler().look_ahead.value_or(false)}};
  const Result r = run_workload(f, run, times);
  const double rate = static_cast<double>(r.output_tokens) / r.seconds;
  report.add({.name = "output_tokens_per_s",
              .value = rate,
              .unit = "tokens/s",
              .details = {{"seconds", r.seconds}}});
  report.add({.name = "prompt_tokens_per_s",
              .value = static_cast<double>(r.prompt_tokens) / r.seconds,
              .unit = "tokens/s",
              .details = {{"cached_tokens", r.cached_tokens}}});
  if (r.reusable_tokens > 0) {
    report.add({.name = "reusable_tokens_hit",
                .value = static_cast<double>(r.cached_tokens) / static_cast<double>(r.reusable_tokens),
                .unit = "share",
                .limit = 1.0,
                .details = {{"reusable_tokens", r.reusable_tokens}}});
  }
  if (f.engine.prefix_caching && f.compared > 0) {
    const double plain = without_cache(f, run, r.requests);
    report.add({.name = "speedup_over_no_cache",
                .value = rate / plain,
                .unit = "times",
                .details = {{"no_cache_output_tokens_per_s", plain},
                            {"no_cache_requests", std::min<int64_t>(f.compared, std::ssize(r.requests))}}});
  }
  report.add({.name = "step_ms_p50",
              .value = quantile(r.times.steps, 0.5),
              .unit = "ms",
              .details = {{"p99", quantile(r.times.steps, 0.99)}, {"steps", r.times.steps.size()}}});
  report.add({.name = "engine_overhead_us_p50",
              .value = 1000 * quantile(r.times.overheads, 0.5),
              .unit = "us",
              .details = {{"p99", 1000 * quantile(r.times.overheads, 0.99)},
                          {"steps_ahead", r.steps_ahead},
                          {"dropped_tokens", r.dropped_tokens}}});
  report.add({.name = "occupancy",
              .value = r.occupancy,
              .unit = "share",
              .limit = 1.0,
              .details = {{"cache_rows_used", r.rows_used}, {"preemptions", r.preemptions}}});
  report.write(f.out);
  if (f.json) {
    fmt::print("{}\n", json_text(report.json()));
    return 0;
  }
  fmt::print("{}\n", report.headline());
  for (const BenchRow& row : report.rows()) fmt::print("{:<24}{:>12.3f} {}\n", row.name, row.value, row.unit);
  return 0;
}

}  // namespace

void add_bench_throughput(CLI::App& bench, Action& run) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub =
      bench.add_subcommand("throughput", "many requests through the engine; tokens/s, reuse, step times");
  flags->model.add_to(*sub);
  flags->engine.add_to(*sub);
  sub->add_option(
         "--workload", flags->workload,
         "random: nothing in common; prefix: one shared prefix; agent: a shared system prompt and turns")
      ->check(CLI::IsMember({"random", "prefix", "agent"}));
  const auto count = [&](const char* name, int& value, const char* what, int least) {
    sub->add_option(name, value, what)->transform(whole_number(least, 1 << 20));
  };
  count("--conversations", flags->conversations, "side by side", 1);
  count("--turns", flags->turns, "of a conversation (agent)", 1);
  count("--prefix-len", flags->prefix_len, "tokens of the shared prefix", 1);
  count("--input-len", flags->input_len, "new prompt tokens of a turn", 1);
  count("--output-len", flags->output_len, "tokens of an answer", 1);
  count("--compared", flags->compared, "requests run again without reuse, for the speedup; 0: none", 0);
  sub->add_option("--out", flags->out, "also write the JSON to this file");
  sub->add_flag("--json", flags->json, "one JSON object on stdout");
  sub->callback([flags, &run] { run = [flags] { return run_throughput(*flags); }; });
}

}  // namespace perigee::cli
