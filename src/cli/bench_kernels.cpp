// perigee bench kernels, on a CPU: every stage of a model alone, at the row counts of decode, a decode batch
// and prefill, beside what the machine's ceilings allow and beside the plain backend. The caches are emptied
// before each call, since in a model step the weights of all other layers pass between two uses of one.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "cli/bench.h"
#include "cli/bench_kernels_cuda.h"
#include "cli/bench_report.h"
#include "cli/dummy_context.h"
#include "cli/flags.h"
#include "cli/json.h"
#include "cli/kernel_cases.h"
#include "cli/validators.h"
#include "engine/runner.h"
#include "engine/tile_weights.h"

namespace perigee::cli {

namespace {

using Clock = std::chrono::steady_clock;

// bench/configs/k31-220m.json, as a cut of the built-in config: there wherever the binary is.
constexpr const char* kDefaultModel = "kimi-k3.1-pro";
constexpr const char* kDefaultCut =
    "num_hidden_layers=8,hidden_size=1024,vision_config.text_hidden_size=1024,vocab_size=32768,"
    "bos_token_id=32764,eos_token_id=32766,pad_token_id=32767,intermediate_size=2816,num_attention_heads=8,"
    "num_key_value_heads=8,q_lora_rank=384,linear_attn_config.num_heads=8,attn_res_block_size=4,num_experts="
    "32,"
    "num_experts_per_token=4,num_shared_experts=1,moe_intermediate_size=256,routed_expert_hidden_size=512";

struct Flags {
  std::string model, override_config, device = "cpu", cpu_kernels = "auto", stage, peer = "plain", out;
  std::vector<std::string> only;
  NumericsFlags numerics;
  KernelSizes sizes;
  int threads = 0;
  double seconds = 0.4;
  bool json = false;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Timing {
  double seconds = 0;  // median of a call
  int calls = 0;
};

// Calls for about `budget` seconds, the emptying of the caches included, and at least once.
Timing time_calls(const KernelCase& c, Backend& backend, CeilingMeter& ceilings, double budget) {
  c.rewind();
  c.run(backend);  // the workspace of the backend grows in the first call
  std::vector<double> seconds;
  const auto begin = Clock::now();
  do {
    c.rewind();
    ceilings.evict_caches();
    const auto start = Clock::now();
    c.run(backend);
    seconds.push_back(seconds_since(start));
  } while (seconds_since(begin) < budget);
  return {median(seconds), static_cast<int>(seconds.size())};
}

BenchRow kernel_row(const KernelCase& c, const Timing& timing, const Ceilings& ceilings) {
  const Limit limit = limit_of(c.cost, ceilings);
  const double work = limit.by_bandwidth ? c.cost.bytes : c.cost.flops;
  return {.name = c.name,
          .value = work / timing.seconds / 1e9,
          .unit = limit.by_bandwidth ? "GB/s" : "GFLOP/s",
          .limit = work / limit.seconds / 1e9,
          .limit_by = limit.name(),
          .details = {{"microseconds", timing.seconds * 1e6},
                      {"calls", timing.calls},
                      {"read_bytes", c.cost.bytes},
                      {"flops", c.cost.flops}}};
}

void print_text(const BenchReport& report) {
  fmt::print("{}\n{:<48} {:>12} {:>10} {:>8} {:>9} {:>8}\n", report.headline(), "stage", "microseconds", "",
             "", "of limit", "x plain");
  for (const BenchRow& r : report.rows()) {
    if (!r.limit) {
      fmt::print("{:<48} {:>12} {:>10.1f} {:>8}\n", r.name, "", r.value, r.unit);
      continue;
    }
    fmt::print("{:<48} {:>12.1f} {:>10.1f} {:>8} {:>7.0f} % {:>8}\n", r.name,
               r.details.at("microseconds").as_double(), r.value, r.unit, 100 * r.value / *r.limit,
               r.peer.empty() ? "" : fmt::format("{:.1f}", r.value / r.peer_value));
  }
}

int run_kernels(const Flags& f) {
  check_depth("--context", f.sizes.context);
  check_writable(f.out);
  const bool standard = f.model.empty();
  if (standard && !f.override_config.empty())
    fail(ErrorCode::kUsage, "--override-config {}: needs a MODEL to override", f.override_config);
  const ModelConfig config = load_config(standard ? kDefaultModel : f.model,
                                         parse_config_overrides(standard ? kDefaultCut : f.override_config));
  Weights weights = load_weights("", config, {.format = LoadFormat::kDummy});
  const int threads =
      f.threads > 0 ? f.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const Precision precision = f.numerics.precision();
  const ReductionPlan plan = f.numerics.plan();
  const auto backend = make_cpu_backend(f.cpu_kernels, threads), plain = make_cpu_backend("plain", threads);
  tile_weights(weights, *backend, plan, {.threads = threads});
  const bool with_peer = f.peer == "plain" && backend->kernels() != "plain";
  const NumericsIdentity id =
      numerics_identity(config, weights.digest, precision, plan, backend->architecture());
  BenchReport report(standard ? "k31-220m" : f.model, threads, backend->kernels(), id.digest);
  report.settings = {{"threads", threads},
                     {"batch_size", f.sizes.batch},
                     {"prefill_rows", f.sizes.prefill_rows},
                     {"context", f.sizes.context}};
  ThreadPool pool(threads);
  const KernelCases cases(config, weights, cache_shape(config, precision.latent, precision.index), plan,
                          f.sizes, pool);
  std::vector<KernelCase> chosen;
  for (const KernelCase& c : cases.cases()) {
    if (f.stage.empty() || c.stage() == f.stage) chosen.push_back(c);
  }
  if (chosen.empty()) fail(ErrorCode::kUsage, "--stage {}: this model has no such stage", f.stage);

  CeilingMeter ceilings(threads);
  ceilings.measure();
  std::vector<Timing> timings, peers;
  for (const KernelCase& c : chosen) {
    timings.push_back(time_calls(c, *backend, ceilings, f.seconds));
    if (with_peer) peers.push_back(time_calls(c, *plain, ceilings, f.seconds));
  }
  ceilings.measure();
  for (size_t i = 0; i < chosen.size(); ++i) {
    BenchRow row = kernel_row(chosen[i], timings[i], ceilings.best());
    if (with_peer) {
      row.peer = "plain";
      row.peer_value = row.value * timings[i].seconds / peers[i].seconds;
    }
    report.add(std::move(row));
  }
  report.add_ceilings(ceilings.best());
  report.write(f.out);
  if (f.json) {
    fmt::print("{}\n", json_text(report.json()));
  } else {
    print_text(report);
  }
  return 0;
}

// The GPU's shapes are fixed: those of K3.1 at TP8, and of projections.
void check_options_of_device(const CLI::App& sub, const std::string& device) {
  for (const CLI::Option* option : sub.get_options()) {
    if (option->count() == 0) continue;
    const std::string name = option->get_name();
    const bool of_both = name == "--device" || name == "--out" || name == "--json";
    if (!of_both && (device == "cuda") != (name == "--only"))
      fail(ErrorCode::kUsage, "{}: has no meaning with --device {}; leave it out", name, device);
  }
}

}  // namespace

void add_bench_kernels(CLI::App& bench, Action& run) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = bench.add_subcommand(
      "kernels", "speed of every stage alone, with dummy weights; on a GPU at fixed shapes");
  sub->add_option("MODEL", flags->model, "whose shapes: a folder, config file or built-in config")
      ->default_str("the shapes of bench/configs/k31-220m.json");
  sub->add_option("--override-config", flags->override_config, "e.g. num_hidden_layers=4,num_experts=16")
      ->check(not_empty());
  sub->add_option("--device", flags->device, "where to compute")->check(CLI::IsMember({"cpu", "cuda"}));
  sub->add_option("--only", flags->only, "with --device cuda: only these, e.g. experts,attend")
      ->delimiter(',')
      ->check(CLI::IsMember(cuda_bench_names()));
  sub->add_option("--threads", flags->threads, "CPU threads; 0 takes all")->transform(whole_number(0, 1024));
  sub->add_option("--cpu-kernels", flags->cpu_kernels, "auto takes the fastest; all give the same bits")
      ->check(CLI::IsMember({"auto", "plain", "avx2", "avx512"}));
  sub->add_option("--stage", flags->stage, "only this stage, e.g. kda_chunk")
      ->check(CLI::IsMember(KernelCases::stages()));
  sub->add_option("--batch-size", flags->sizes.batch, "rows of a decode batch")
      ->transform(whole_number(2, 512));
  sub->add_option("--prefill-rows", flags->sizes.prefill_rows, "rows of a prefill step")
      ->transform(whole_number(2, 8192));
  sub->add_option("--context", flags->sizes.context,
                  "tokens before a decode row, a multiple of 16; prefill rows stand behind an eighth of them")
      ->transform(whole_number(128, 1 << 24));
  sub->add_option("--seconds", flags->seconds, "about this long a row and backend")->check(number(0, 60));
  sub->add_option("--peer", flags->peer, "what each row is compared with")
      ->check(CLI::IsMember({"plain", "none"}));
  flags->numerics.add_to(*sub);
  sub->add_option("--out", flags->out, "also write the JSON to this file")->check(not_empty());
  sub->add_flag("--json", flags->json, "one JSON object on stdout");
  sub->callback([sub, flags, &run] {
    run = [sub, flags] {
      check_options_of_device(*sub, flags->device);
      if (flags->device == "cpu") return run_kernels(*flags);
      check_writable(flags->out);
      return run_cuda_kernels(flags->only, flags->json, flags->out);
    };
  });
}

}  // namespace perigee::cli
