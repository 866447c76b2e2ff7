#include "engine/runner.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "engine/tile_weights.h"
#include "ops/cpu/fast/backend.h"

namespace perigee {

namespace {

// The lane rule cuts heads and intermediate columns into equal blocks.
void check_plan(const ModelConfig& c, const ReductionPlan& plan) {
  const auto power_of_two = [](int n) { return n >= 1 && n <= kMaxLanes && (n & (n - 1)) == 0; };
  if (!power_of_two(plan.lanes))
    fail(ErrorCode::kUsage, "--lanes {}: must be 1, 2, 4, 8, 16 or 32", plan.lanes);
  if (!power_of_two(plan.attention_lanes)) {
    fail(ErrorCode::kUsage, "--attention-lanes {}: must be 1, 2, 4, 8, 16 or 32", plan.attention_lanes);
  }
  std::vector<std::pair<const char*, int>> cut = {{"KDA heads", c.kda.num_heads},
                                                  {"MLA heads", c.mla.num_heads},
                                                  {"dense intermediate columns", c.intermediate_size},
                                                  {"vocabulary rows", c.vocab_size}};
  if (c.moe.num_experts) {
    cut.push_back({plan.moe_lanes_expert ? "experts" : "expert intermediate columns",
                   plan.moe_lanes_expert ? c.moe.num_experts : c.moe.intermediate_size});
    if (c.moe.num_shared_experts)
      cut.push_back({"shared intermediate columns", c.moe.shared_intermediate_size()});
  }
  for (const auto& [what, count] : cut) {
    if (count % plan.lanes == 0) continue;
    std::string fit;
    for (int lanes = 1; lanes <= kMaxLanes; lanes *= 2) {
      if (std::all_of(cut.begin(), cut.end(), [&](const auto& x) { return x.second % lanes == 0; })) {
        fit += (fit.empty() ? "" : ", ") + std::to_string(lanes);
      }
    }
    fail(ErrorCode::kUsage,
         "--lanes {}: this model has {} {}, which do not divide evenly; lanes that fit: {}", plan.lanes,
         count, what, fit);
  }
}

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const std::string& kernels, int threads) {
  const cpu::Kernels* fast = kernels == "auto" ? cpu::best_kernels() : cpu::find_kernels(kernels);
  if (fast) return std::make_unique<cpu::FastBackend>(threads, *fast);
  if (kernels != "auto" && kernels != "plain")
    fail(ErrorCode::kUsage, "--cpu-kernels {}: this CPU cannot run them; try auto", kernels);
  return std::make_unique<cpu::PlainBackend>(threads);
}

namespace {

std::unique_ptr<CachePool> make_pool(const ModelConfig& config, const RunnerOptions& options) {
  const CacheShape shape = cache_shape(config, options.precision.latent, options.precision.index);
  const CachePlan plan(cache_kinds(shape), {.block_tokens = options.block_tokens});
  const int64_t machine = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  const int64_t bytes = options.cache_bytes > 0 ? options.cache_bytes : machine / 2;
  // Slots are few and taken only where sequences live, so they do not count against the rows.
  const int64_t rows = options.cache_rows > 0 ? options.cache_rows : bytes / plan.row_bytes();
  if (rows < 2 * plan.state_rows() + 1) {
    fail(ErrorCode::kUsage,
         "{} bytes of cache hold {} rows of {} bytes, but one sequence needs {}; give the cache more memory",
         rows * plan.row_bytes(), rows, plan.row_bytes(), 2 * plan.state_rows() + 1);
  }
  return std::make_unique<CachePool>(shape, plan, rows, options.sequences);
}

}  // namespace

Runner::Runner(ModelConfig config, Weights weights, const RunnerOptions& options)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      plan_(options.plan),
      threads_(options.threads > 0 ? options.threads
                                   : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))) {
  check_plan(config_, plan_);
  backend_ = make_cpu_backend(options.cpu_kernels, threads_);
  pool_ = make_pool(config_, options);
  tile_weights(weights_, *backend_, plan_, {.folder = options.tile_folder, .threads = threads_});
  numerics_ = numerics_identity(config_, weights_.digest, options.precision, plan_, backend_->architecture());
}

std::span<const float> Runner::step(const Batch& batch, StepTrace* trace) {
  logits_.resize(batch.logit_rows.size() * config_.vocab_size);
  const Step step{.backend = *backend_,
                  .config = config_,
                  .weights = weights_,
                  .plan = plan_,
                  .arena = arena_,
                  .batch = batch,
                  .trace = trace,
                  .controls = controls_};
  forward(step, logits_.data());
  return logits_;
}

void Runner::draw(const float* logits, std::span<const SampleParams> params,
                  std::span<const int64_t> positions, std::span<int32_t> tokens, std::span<float> log_norm) {
  backend_->sample({.logits = logits,
                    .params = params,
                    .positions = positions,
                    .tokens = tokens,
                    .log_norm = log_norm,
                    .vocab = config_.vocab_size,
                    .lanes = plan_.lanes});
}

std::vector<Runner::Sampled> Runner::sample(std::span<const SampleParams> params,
                                            std::span<const int64_t> positions,
                                            std::span<const LogitsProcessor* const> processors) {
  const size_t vocab = config_.vocab_size;
  check(params.size() * vocab == logits_.size(), "Runner::sample: one set of parameters per logit row");
  check(processors.empty() || processors.size() == params.size(), "Runner::sample: one processor per row");
  std::vector<int32_t> tokens(params.size());
  std::vector<float> log_norm(params.size());
  draw(logits_.data(), params, positions, tokens, log_norm);

  // Rows with a processor are drawn once more, from processed copies.
  std::vector<size_t> rows;
  for (size_t i = 0; i < processors.size(); ++i) {
    if (processors[i] && processors[i]->active()) rows.push_back(i);
  }
  std::vector<float> processed(rows.size() * vocab), unused(rows.size());
  std::vector<SampleParams> row_params;
  std::vector<int64_t> row_positions;
  std::vector<int32_t> row_tokens(rows.size());
  for (size_t j = 0; j < rows.size(); ++j) {
    const std::span<float> row(processed.data() + j * vocab, vocab);
    std::copy_n(logits_.data() + rows[j] * vocab, vocab, row.begin());
    processors[rows[j]]->apply(row, params[rows[j]].temperature);
    row_params.push_back(params[rows[j]]);
    row_positions.push_back(positions[rows[j]]);
  }
  if (!rows.empty()) draw(processed.data(), row_params, row_positions, row_tokens, unused);
  for (size_t j = 0; j < rows.size(); ++j) tokens[rows[j]] = row_tokens[j];

  std::vector<Sampled> out;
  for (size_t i = 0; i < params.size(); ++i) {
    const float z = logits_[i * vocab + tokens[i]];
    out.push_back({.token = tokens[i], .logprob = z - log_norm[i], .log_norm = log_norm[i]});
  }
  return out;
}

}  // namespace perigee
