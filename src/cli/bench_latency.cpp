// perigee bench latency: prefill and decode speed of one batch on this machine, beside what its memory
// bandwidth and its arithmetic allow.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "base/philox.h"
#include "cli/bench.h"
#include "cli/bench_report.h"
#include "cli/dummy_context.h"
#include "cli/engine_flags.h"
#include "cli/flags.h"
#include "cli/json.h"
#include "cli/validators.h"
#include "engine/generate.h"

namespace perigee::cli {

namespace {

using Clock = std::chrono::steady_clock;

struct Flags {
  ModelFlags model;
  int input_len = 256, output_len = 64, batch = 1, repeats = 3;
  int64_t depth = 0;
  std::optional<bool> look_ahead;
  std::string out;
  bool json = false, stages = false;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The steps of one phase, as the cost model sees them.
using Steps = std::vector<StepShape>;

// One batch of requests, from an empty or made-up context to the last token. The same tokens every time, so
// that what a traced run counts holds for the timed ones.
class BatchRun {
 public:
  BatchRun(const Flags& f, Runner& runner, bool traced) : f_(f), runner_(runner), traced_(traced) {
    ThreadPool pool(runner.threads());
    for (int b = 0; b < f.batch; ++b) {
      const int64_t most = f.depth + f.input_len + f.output_len + 1;
      caches_.emplace_back(runner.cache_shape(), runner.memory(), most);
      if (f.depth == 0) continue;
      if (runner.memory().on_host()) {
        fill_dummy_context(caches_[b], runner.cache_shape(), f.depth, static_cast<uint64_t>(b), pool);
      } else {
        SequenceCache host(runner.cache_shape(), host_memory(), most);
        fill_dummy_context(host, runner.cache_shape(), f.depth, static_cast<uint64_t>(b), pool);
        caches_[b].upload(host);
      }
    }
  }

  // Seconds of the prompts, in steps as large as the engine makes them.
  double prefill(Steps* steps) {
    const int per_step = batched_tokens(0, runner_.memory(), f_.batch) / f_.batch;
    const auto start = Clock::now();
    for (int done = 0; done < f_.input_len;) {
      const int count = std::min(per_step, f_.input_len - done);
      const bool last = done + count == f_.input_len;
      Batch batch;
      for (int b = 0; b < f_.batch; ++b) batch.add(caches_[b], prompt(b, done, count), 0, last ? 1 : 0);
      step(batch, count, last ? 1 : 0, steps);
      done += count;
    }
    runner_.memory().wait();
    return seconds_since(start);
  }

  // Seconds of the answers, sampling included; looking ahead as the engine does.
  double decode(Steps* steps) {
    const bool look_ahead = f_.look_ahead.value_or(looks_ahead(runner_.memory()));
    const std::vector<SampleParams> params(f_.batch, SampleParams{.temperature = 0});
    const auto start = Clock::now();
    for (int i = 0; i < f_.output_len; ++i) {
      std::vector<int64_t> positions;
      for (const SequenceCache& c : caches_) positions.push_back(c.length());
      runner_.draw(params, positions);
      Runner::Outcome drawn;
      if (!look_ahead) drawn = runner_.collect();
      Batch batch;
      for (int b = 0; b < f_.batch; ++b) {
        const int32_t token = look_ahead ? drawn_token(b) : drawn.sampled[b].token;
        batch.add(caches_[b], std::span(&token, 1), look_ahead ? 1 : 0, 1);
      }
      step(batch, 1, 1, steps);
      if (look_ahead) drawn = runner_.collect();
    }
    runner_.memory().wait();
    return seconds_since(start);
  }

 private:
  std::vector<int32_t> prompt(int sequence, int begin, int count) const {
    std::vector<int32_t> tokens;
    for (int i = begin; i < begin + count; ++i) {
      const uint32_t word = random_words(static_cast<uint64_t>(sequence), 1, static_cast<uint64_t>(i), 0)[0];
      tokens.push_back(static_cast<int32_t>(word % static_cast<uint32_t>(runner_.config().vocab_size)));
    }
    return tokens;
  }

  void step(const Batch& batch, int rows, int logit_rows, Steps* steps) {
    const int64_t depth = caches_[0].length();
    StepTrace trace;
    runner_.compute(batch, traced_ ? &trace : nullptr);
    if (!steps) return;
    double distinct = 0;
    for (const auto& [layer, experts] : trace.experts)
      distinct += static_cast<double>(std::set(experts.begin(), experts.end()).size());
    if (!trace.experts.empty()) distinct /= static_cast<double>(trace.experts.size());
    steps->push_back({.sequences = f_.batch,
                      .rows = rows,
                      .depth = depth,
                      .logit_rows = logit_rows,
                      .distinct_experts = distinct,
                      .latent = runner_.cache_shape().latent_format,
                      .index = runner_.cache_shape().index_format});
  }

  const Flags& f_;
  Runner& runner_;
  bool traced_;
  std::vector<SequenceCache> caches_;
};

// A timed run, and the ceilings measured right before and after it, the higher of the two: the speed of a
// shared machine's memory drifts within minutes by more than what is asked of a figure.
struct TimedRun {
  double prefill_seconds = 0, decode_seconds = 0;
  Ceilings ceilings;
};

// The run whose share of its own limit is the median.
BenchRow phase_row(const char* name, double tokens, const std::vector<TimedRun>& runs,
                   double TimedRun::* seconds, const Steps& steps, const ModelConfig& config) {
  struct Speed {
    double value, limit;
    bool by_bandwidth;
    double share() const { return value / limit; }
  };
  std::vector<Cost> costs;
  Cost total;
  for (const StepShape& s : steps) {
    costs.push_back(step_cost(config, s));
    total = total + costs.back();
  }
  std::vector<Speed> speeds;
  std::vector<double> values;
  for (const TimedRun& run : runs) {
    double best_seconds = 0, bandwidth_seconds = 0;
    for (const Cost& cost : costs) {
      const Limit limit = limit_of(cost, run.ceilings);
      best_seconds += limit.seconds;
      if (limit.by_bandwidth) bandwidth_seconds += limit.seconds;
    }
    values.push_back(tokens / run.*seconds);
    speeds.push_back({values.back(), tokens / best_seconds, 2 * bandwidth_seconds >= best_seconds});
  }
  std::sort(speeds.begin(), speeds.end(), [](auto& a, auto& b) { return a.share() < b.share(); });
  const Speed& middle = speeds[(speeds.size() - 1) / 2];
  boost::json::object details = spread(values);
  details["min_share"] = speeds.front().share();
  details["max_share"] = speeds.back().share();
  details["read_bytes_per_step"] = total.bytes / static_cast<double>(steps.size());
  details["flop_per_token"] = total.flops / tokens;
  details["read_gb_per_s"] = middle.value / tokens * total.bytes / 1e9;
  details["gflop_per_s"] = middle.value / tokens * total.flops / 1e9;
  return {.name = name,
          .value = middle.value,
          .unit = "tokens/s",
          .limit = middle.limit,
          .limit_by = middle.by_bandwidth ? "read_bandwidth" : "dpbf16_rate",
          .details = std::move(details)};
}

// Rows "PHASE STAGE": microseconds of all calls in a step, beside what the ceilings allow; and what lies
// between stages.
void add_stage_rows(BenchReport& report, const std::string& phase, const StageTimes& stages, double seconds,
                    double steps, const Ceilings& ceilings) {
  double rest = seconds;
  for (const StageTime& s : stages) {
    const Limit limit = limit_of(s.cost, ceilings);
    report.add({.name = phase + " " + s.name,
                .value = s.seconds / steps * 1e6,
                .unit = "us",
                .limit = limit.seconds / steps * 1e6,
                .limit_by = limit.name(),
                .details = {{"calls_per_step", static_cast<double>(s.calls) / steps}}});
    rest -= s.seconds;
  }
  report.add({.name = phase + " between stages", .value = rest / steps * 1e6, .unit = "us"});
}

void print_text(const BenchReport& report, const Ceilings& ceilings) {
  fmt::print("{}\n", report.headline());
  fmt::print("ceilings {:>9.1f} GB/s read, {:.1f} GFLOP/s bf16 ({})\n", ceilings.read_bytes_per_s / 1e9,
             ceilings.dpbf16_flop_per_s / 1e9, ceilings.instruction);
  for (const BenchRow& r : report.rows()) {
    if (r.unit == "us")
      fmt::print("{:<32} {:>9.1f} us a step, at least {:.1f}\n", r.name, r.value, r.limit.value_or(0));
    if (r.unit != "tokens/s") continue;
    fmt::print(
        "{:<8} {:>9.1f} tokens/s  {:>3.0f} % of the {:.1f} that {} allows  ({:.1f} GB/s, {:.1f} GFLOP/s)\n",
        r.name.substr(0, r.name.find('_')), r.value, 100 * r.value / *r.limit, *r.limit,
        r.limit_by == "read_bandwidth" ? "the read bandwidth" : "the bf16 rate",
        r.details.at("read_gb_per_s").as_double(), r.details.at("gflop_per_s").as_double());
  }
}

// Before the weights are loaded.
void check_length(const Flags& f) {
  const ModelConfig config = load_config(f.model.model, parse_config_overrides(f.model.override_config));
  const int64_t length = f.depth + f.input_len + f.output_len;
  if (length <= config.max_position_embeddings) return;
  fail(ErrorCode::kUsage,
       "--depth {} --input-len {} --output-len {}: {} tokens, but the model's context holds {}", f.depth,
       f.input_len, f.output_len, length, config.max_position_embeddings);
}

int run_latency(const Flags& f) {
  check_depth("--depth", f.depth);
  check_length(f);
  check_writable(f.out);
  Runner runner = f.model.load();
  if (f.stages && !runner.memory().on_host())
    fail(ErrorCode::kUsage,
         "--stages: only with --device cpu: a GPU is not waited for after each stage; `scripts/gpu bench` "
         "times them");
  BenchReport report(f.model.model, runner.threads(), runner.kernels(), runner.numerics().digest);
  report.settings = {{"input_len", f.input_len},
                     {"output_len", f.output_len},
                     {"batch_size", f.batch},
                     {"depth", f.depth},
                     {"repeats", f.repeats},
                     {"threads", runner.threads()},
                     {"async_scheduling", f.look_ahead.value_or(looks_ahead(runner.memory()))}};
  const bool on_host = runner.memory().on_host();
  CeilingMeter meter(runner.threads());
  Steps prefill_steps, decode_steps;
  {  // warms caches and workspace up, and counts the experts
    BatchRun run(f, runner, true);
    run.prefill(&prefill_steps);
    run.decode(&decode_steps);
  }
  // A GPU's are measured once: nobody else computes on it.
  const Ceilings of_device = on_host ? Ceilings{} : device_ceilings(runner.memory());
  const auto measure = [&] { return on_host ? meter.measure() : of_device; };
  std::vector<TimedRun> runs(f.repeats);
  Ceilings ceilings = measure(), last = ceilings;
  for (TimedRun& timed : runs) {
    BatchRun run(f, runner, false);
    timed.prefill_seconds = run.prefill(nullptr);
    timed.decode_seconds = run.decode(nullptr);
    const Ceilings next = measure();
    timed.ceilings = higher(last, next);
    ceilings = higher(ceilings, next);
    last = next;
  }
  StageTimes prefill_stages, decode_stages;
  double prefill_seconds = 0, decode_seconds = 0;
  if (f.stages) {
    BatchRun run(f, runner, false);
    runner.clock_stages(&prefill_stages);
    prefill_seconds = run.prefill(nullptr);
    runner.clock_stages(&decode_stages);
    decode_seconds = run.decode(nullptr);
    runner.clock_stages(nullptr);
  }

  const double prompt = double(f.input_len) * f.batch, answer = double(f.output_len) * f.batch;
  report.add(phase_row("prefill_tokens_per_s", prompt, runs, &TimedRun::prefill_seconds, prefill_steps,
                       runner.config()));
  report.add(phase_row("decode_tokens_per_s", answer, runs, &TimedRun::decode_seconds, decode_steps,
                       runner.config()));
  if (f.stages) {
    const auto count = [](const Steps& steps) { return static_cast<double>(steps.size()); };
    add_stage_rows(report, "prefill", prefill_stages, prefill_seconds, count(prefill_steps), ceilings);
    add_stage_rows(report, "decode", decode_stages, decode_seconds, count(decode_steps), ceilings);
  }
  report.add_ceilings(ceilings);
  report.write(f.out);
  if (f.json) {
    fmt::print("{}\n", json_text(report.json()));
  } else {
    print_text(report, ceilings);
  }
  return 0;
}

}  // namespace

void add_bench_latency(CLI::App& bench, Action& run) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = bench.add_subcommand("latency", "prefill and decode speed of one batch; medians");
  flags->model.add_to(*sub);
  sub->add_option("--input-len", flags->input_len, "prompt tokens")->transform(whole_number(1, 1 << 20));
  sub->add_option("--output-len", flags->output_len, "decoded tokens")->transform(whole_number(1, 1 << 20));
  sub->add_option("--batch-size", flags->batch, "requests side by side")->transform(whole_number(1, 512));
  sub->add_option("--depth", flags->depth,
                  "tokens of made-up context before the prompt, a multiple of 16; filled, not computed")
      ->transform(whole_number(0, 1 << 24));
  sub->add_option("--repeats", flags->repeats, "timed runs; the median counts")
      ->transform(whole_number(1, 1000));
  sub->add_flag("--stages", flags->stages, "also the time of every stage, from one more run (CPU only)");
  add_look_ahead(*sub, flags->look_ahead);
  sub->add_option("--out", flags->out, "also write the JSON to this file")->check(not_empty());
  sub->add_flag("--json", flags->json, "one JSON object on stdout");
  sub->callback([flags, &run] { run = [flags] { return run_latency(*flags); }; });
}

}  // namespace perigee::cli
