// perigee bench latency: prefill and decode speed of one request on this machine, beside the memory bandwidth
// it could reach.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <numeric>

#include "base/philox.h"
#include "base/thread_pool.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/json.h"
#include "commit.h"
#include "model/summary.h"

namespace perigee::cli {

namespace {

using Clock = std::chrono::steady_clock;

struct Flags {
  ModelFlags model;
  int input_len = 256, output_len = 64, batch = 1, repeats = 3;
  std::string out;
  bool json = false;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

// GB/s of summing a buffer far larger than the caches, on the threads the engine uses.
double read_bandwidth(int threads) {
  constexpr int64_t kWords = int64_t{32} << 20, kBlock = 1 << 18;
  const std::vector<uint64_t> data(kWords, 1);
  std::vector<uint64_t> sums(kWords / kBlock);
  ThreadPool pool(threads);
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    const auto start = Clock::now();
    pool.run(kWords / kBlock, [&](int64_t b) {
      sums[b] = std::accumulate(data.begin() + b * kBlock, data.begin() + (b + 1) * kBlock, uint64_t{0});
    });
    times.push_back(seconds_since(start));
  }
  check(std::accumulate(sums.begin(), sums.end(), uint64_t{0}) == kWords, "read_bandwidth: wrong sum");
  return kWords * 8 / median(times) / 1e9;
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

boost::json::object row(const char* name, double value, const char* unit, boost::json::value limit) {
  return {{"name", name},   {"value", value},  {"unit", unit},
          {"limit", limit}, {"peer", nullptr}, {"peer_value", nullptr}};
}

int run_latency(const Flags& f) {
  Runner runner = f.model.load();
  const ModelConfig& config = runner.config();
  std::vector<double> prefill, decode;
  for (int repeat = 0; repeat < f.repeats; ++repeat) {
    std::vector<SequenceCache> caches;
    std::vector<std::vector<int32_t>> prompts(f.batch);
    Batch batch;
    for (int b = 0; b < f.batch; ++b) caches.emplace_back(runner.cache_shape());
    for (int b = 0; b < f.batch; ++b) {
      for (int i = 0; i < f.input_len; ++i) {
        const uint32_t word = random_words(b, 1, i, repeat)[0];
        prompts[b].push_back(static_cast<int32_t>(word % config.vocab_size));
      }
      batch.add(caches[b], prompts[b], 0, 1);
    }
    auto start = Clock::now();
    runner.step(batch);
    prefill.push_back(double(f.input_len) * f.batch / seconds_since(start));
    start = Clock::now();
    for (int i = 0; i < f.output_len; ++i) {
      const std::vector<SampleParams> params(f.batch, SampleParams{.temperature = 0});
      std::vector<int64_t> positions;
      for (const SequenceCache& c : caches) positions.push_back(c.length());
      const auto tokens = runner.sample(params, positions);
      Batch next;
      for (int b = 0; b < f.batch; ++b) next.add(caches[b], std::span(&tokens[b].token, 1), 0, 1);
      runner.step(next);
    }
    decode.push_back(double(f.output_len) * f.batch / seconds_since(start));
  }
  const double bandwidth = read_bandwidth(runner.threads());
  // What one token alone must read: its active weights, at the bytes they have in the checkpoint.
  const ModelSummary summary = summarize(config);
  const int routed = static_cast<int>(TensorKind::kRoutedExperts),
            table = static_cast<int>(TensorKind::kEmbedding), vision = static_cast<int>(TensorKind::kVision);
  double bytes =
      static_cast<double>(summary.bytes - summary.bytes_by_kind[table] - summary.bytes_by_kind[vision]);
  if (config.moe.num_experts) {
    bytes -=
        summary.bytes_by_kind[routed] * (1.0 - double(config.moe.experts_per_token) / config.moe.num_experts);
  }
  const boost::json::value decode_limit =
      f.batch == 1 ? boost::json::value(bandwidth * 1e9 / bytes) : nullptr;
  double load[1] = {0};
  if (getloadavg(load, 1) < 1) load[0] = -1;
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%FT%TZ", std::gmtime(&now));
  const boost::json::object out{{"hardware", fmt::format("{}, {} threads", cpu_name(), runner.threads())},
                                {"commit", PERIGEE_COMMIT},
                                {"date", date},
                                {"model", f.model.model},
                                {"load_average", load[0]},
                                {"numerics", runner.numerics().digest},
                                {"rows",
                                 {row("prefill_tokens_per_s", median(prefill), "tokens/s", nullptr),
                                  row("decode_tokens_per_s", median(decode), "tokens/s", decode_limit),
                                  row("read_bandwidth", bandwidth, "GB/s", nullptr)}}};
  if (!f.out.empty()) {
    std::ofstream file(f.out);
    file << json_text(out) << "\n";
    if (!file) fail(ErrorCode::kUsage, "--out {}: cannot be written", f.out);
  }
  if (f.json) {
    fmt::print("{}\n", json_text(out));
    return 0;
  }
  fmt::print("{}, load average {:.1f}\n", cpu_name(), load[0]);
  fmt::print("prefill  {:>9.1f} tokens/s  ({} x {} tokens)\n", median(prefill), f.batch, f.input_len);
  fmt::print("decode   {:>9.1f} tokens/s", median(decode));
  if (f.batch == 1) {
    fmt::print("  ({:.0f} % of what {:.1f} GB/s of measured read bandwidth allow)",
               100 * median(decode) * bytes / (bandwidth * 1e9), bandwidth);
  }
  fmt::print("\n");
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Action& run) {
  CLI::App* bench = app.add_subcommand("bench", "measurements");
  bench->require_subcommand(1);
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = bench->add_subcommand("latency", "prefill and decode speed of one batch; medians");
  flags->model.add_to(*sub);
  sub->add_option("--input-len", flags->input_len, "prompt tokens")->check(CLI::Range(1, 1 << 20));
  sub->add_option("--output-len", flags->output_len, "decoded tokens")->check(CLI::Range(1, 1 << 20));
  sub->add_option("--batch-size", flags->batch, "requests side by side")->check(CLI::Range(1, 512));
  sub->add_option("--repeats", flags->repeats, "runs; the median counts")->check(CLI::Range(1, 1000));
  sub->add_option("--out", flags->out, "also write the JSON to this file");
  sub->add_flag("--json", flags->json, "one JSON object on stdout");
  sub->callback([flags, &run] { run = [flags] { return run_latency(*flags); }; });
}

}  // namespace perigee::cli
