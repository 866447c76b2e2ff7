#include "engine/runner.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "engine/device_defaults.h"
#include "engine/tile_weights.h"
#include "engine/upload_weights.h"

namespace perigee {

namespace {

void grow(MemoryBlock& block, int64_t bytes, Memory& memory) {
  if (!block.data() || block.bytes() < bytes) block = MemoryBlock(memory, bytes);
}

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

namespace {

// MXFP4 blocks are decoded whole.
void check_device_plan(const ModelConfig& c, const ReductionPlan& plan) {
  if (!c.mxfp4_experts || plan.moe_lanes_expert || c.moe.intermediate_size / plan.lanes % 32 == 0) return;
  fail(ErrorCode::kUsage,
       "--lanes {}: cuts the experts' {} intermediate columns inside MXFP4 blocks of 32, which --device cuda "
       "cannot; use fewer lanes, --moe-lanes expert, or --device cpu",
       plan.lanes, c.moe.intermediate_size);
}

int64_t host_cache_bytes() { return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE) / 2; }

// What gpu_memory_utilization leaves for the cache when weights and workspace are there. `before`: when they
// were not.
int64_t device_cache_bytes(const RunnerOptions& options, int step_tokens, const DeviceRoom& before) {
  constexpr int64_t kLater = int64_t{1} << 30;  // of CUDA graphs, and of long contexts' scores and sums
  const DeviceRoom now = device_room();
  const auto share = static_cast<int64_t>(options.gpu_memory_utilization * static_cast<double>(now.total));
  const int64_t taken = before.free - now.free, bytes = std::min(share - taken, now.free) - kLater;
  if (bytes <= 0) {
    fail(
        ErrorCode::kUsage,
        "--gpu-memory-utilization {}: of the GPU's {} bytes {} were free; weights and a step of {} tokens "
        "take {}, {} are kept for CUDA graphs and long contexts, which leaves none for the cache; give more, "
        "lower --max-num-batched-tokens, or use a smaller model",
        options.gpu_memory_utilization, now.total, before.free, step_tokens, taken, kLater);
  }
  return bytes;
}

// Slots take at most an eighth of the cache: what runs at once is also what rows are left for.
int64_t slots_within(int64_t bytes, const CachePlan& plan, int64_t sequences) {
  const int64_t fit = bytes / 8 / std::max<int64_t>(1, plan.slot_bytes());
  return std::clamp<int64_t>(fit, 1, sequences);
}

// `bytes`: of rows and slots, unless the options say how many rows.
std::unique_ptr<CachePool> make_pool(const ModelConfig& config, const RunnerOptions& options, int64_t bytes,
                                     Memory& memory) {
  const CacheShape shape = cache_shape(config, options.precision.latent, options.precision.index);
  const CachePlan plan(cache_kinds(shape), {.block_tokens = options.block_tokens});
  int64_t rows = options.cache_rows, slots = options.sequences;
  if (rows == 0) {
    slots = slots_within(bytes, plan, slots);
    rows = std::max<int64_t>(0, bytes - slots * plan.slot_bytes()) / plan.row_bytes();
  }
  if (rows < 2 * plan.state_rows() + 1) {
    fail(ErrorCode::kUsage,
         "beside {} slots of {} bytes the cache has {} rows of {} bytes, but one sequence needs {}; give the "
         "cache more memory",
         slots, plan.slot_bytes(), rows, plan.row_bytes(), 2 * plan.state_rows() + 1);
  }
  return std::make_unique<CachePool>(shape, plan, rows, slots, memory);
}

}  // namespace

Runner::Runner(ModelConfig config, Weights weights, const RunnerOptions& options)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      plan_(options.plan),
      threads_(options.threads > 0 ? options.threads
                                   : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))) {
  check_plan(config_, plan_);
  backend_ = make_backend(options.device, options.cpu_kernels, threads_, options.cuda_graphs);
  arena_ = std::make_unique<Arena>(backend_->memory());
  int64_t cache_bytes = options.cache_bytes;
  const bool size_unsaid = cache_bytes == 0 && options.cache_rows == 0;
  if (backend_->memory().on_host()) {
    tile_weights(weights_, *backend_, plan_, {.folder = options.tile_folder, .threads = threads_});
    if (size_unsaid) cache_bytes = host_cache_bytes();
  } else {
    check_device_plan(config_, plan_);
    const DeviceRoom before = device_room();
    upload_weights(weights_, config_, backend_->memory());
    if (size_unsaid) {
      const int tokens = batched_tokens(options.step_tokens, backend_->memory(), 1);
      take_workspace(::perigee::cache_shape(config_, options.precision.latent, options.precision.index),
                     tokens, static_cast<int>(options.sequences));
      cache_bytes = device_cache_bytes(options, tokens, before);
    }
  }
  pool_ = make_pool(config_, options, cache_bytes, backend_->memory());
  numerics_ = numerics_identity(config_, weights_.digest, options.precision, plan_, backend_->architecture());
}

// Computes the largest step once, on made-up tokens, so that all it needs has been allocated.
void Runner::take_workspace(const CacheShape& shape, int tokens, int logit_rows) {
  const int rows = static_cast<int>(std::min<int64_t>(tokens, config_.max_position_embeddings));
  const int logits = std::min(rows, logit_rows);
  SequenceCache cache(shape, backend_->memory(), rows);
  Batch batch;
  batch.add(cache, std::vector<int32_t>(rows), 0, logits);
  compute(batch);
  sample(std::vector<SampleParams>(logits), std::vector<int64_t>(logits));
}

void Runner::compute(const Batch& batch, StepTrace* trace) {
  logit_count_ = static_cast<int64_t>(batch.logit_rows.size()) * config_.vocab_size;
  // An open draw may still want the last ones; a device copies them out, so that they always lie here.
  if (backend_->memory().on_host()) std::swap(logits_, last_logits_);
  grow(logits_, logit_count_ * static_cast<int64_t>(sizeof(float)), backend_->memory());
  logits_on_host_ = false;
  const StepCaches caches(config_, batch, controls_);
  std::optional<StageClock> clock;
  if (stage_times_) clock.emplace(*backend_, *stage_times_);
  const Step step{.backend = clock ? *clock : *backend_,
                  .config = config_,
                  .weights = weights_,
                  .plan = plan_,
                  .arena = *arena_,
                  .batch = batch,
                  .caches = caches,
                  .trace = trace,
                  .controls = controls_};
  forward(step, logits_.as<float>());
}

std::span<const float> Runner::logits() {
  Memory& memory = backend_->memory();
  const size_t count = static_cast<size_t>(logit_count_);
  if (memory.on_host()) return {logits_.as<float>(), count};
  if (!std::exchange(logits_on_host_, true)) {
    const int64_t bytes = logit_count_ * static_cast<int64_t>(sizeof(float));
    grow(host_logits_, bytes, memory.staging());
    memory.copy(host_logits_.data(), logits_.data(), bytes);
    memory.wait();
  }
  return {host_logits_.as<float>(), count};
}

void Runner::draw(std::span<const SampleParams> params, std::span<const int64_t> positions,
                  std::span<const LogitsProcessor* const> processors, bool keep_logits) {
  check(static_cast<int64_t>(params.size()) * config_.vocab_size == logit_count_,
        "Runner::draw: one set of parameters per logit row");
  check(processors.empty() || processors.size() == params.size(), "Runner::draw: one processor per row");
  check(open_draws() < 2, "Runner::draw: two draws are open");
  Memory& memory = backend_->memory();
  Draw& d = open_[draws_++ % 2];
  memory.wait(d.mark);
  d.count = static_cast<int>(params.size());
  d.keeps_logits = keep_logits;
  grow(d.rows, d.count * static_cast<int64_t>(sizeof(SampleRow)), memory.staging());
  grow(d.drawn, d.count * static_cast<int64_t>(sizeof(Drawn)), memory.staging());
  const std::span rows(d.rows.as<SampleRow>(), params.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = {.params = params[i], .position = positions[i]};
  process(rows, processors);
  const SampleArgs args{.logits = logits_.as<float>(),
                        .rows = rows.data(),
                        .drawn = d.drawn.as<Drawn>(),
                        .count = d.count,
                        .vocab = config_.vocab_size,
                        .lanes = plan_.lanes};
  stage_times_ ? StageClock(*backend_, *stage_times_).sample(args) : backend_->sample(args);
  if (keep_logits && !memory.on_host()) {
    const int64_t bytes = logit_count_ * static_cast<int64_t>(sizeof(float));
    grow(d.logits, bytes, memory.staging());
    memory.copy(d.logits.data(), logits_.data(), bytes);
  }
  d.mark = memory.mark();
}

Runner::Outcome Runner::collect() {
  check(open_draws() > 0, "Runner::collect: a draw is open");
  const bool newest = open_draws() == 1;
  const Draw& d = open_[collected_++ % 2];
  Memory& memory = backend_->memory();
  memory.wait(d.mark);
  Outcome out;
  for (const Drawn& t : std::span(d.drawn.as<Drawn>(), d.count))
    out.sampled.push_back({.token = t.token, .logprob = t.logit - t.log_norm, .log_norm = t.log_norm});
  if (d.keeps_logits) {
    const MemoryBlock& kept = !memory.on_host() ? d.logits : newest ? logits_ : last_logits_;
    out.logits = {kept.as<float>(), static_cast<size_t>(int64_t{d.count} * config_.vocab_size)};
  }
  return out;
}

// Rows with an active processor are drawn from processed copies.
void Runner::process(std::span<SampleRow> rows, std::span<const LogitsProcessor* const> processors) {
  std::vector<size_t> active;
  for (size_t i = 0; i < processors.size(); ++i) {
    if (processors[i] && processors[i]->active()) active.push_back(i);
  }
  if (active.empty()) return;
  Memory& memory = backend_->memory();
  const size_t vocab = config_.vocab_size;
  const std::span<const float> logits = this->logits();
  std::vector<float> processed(active.size() * vocab);
  const int64_t bytes = static_cast<int64_t>(processed.size() * sizeof(float));
  grow(processed_, bytes, memory);
  for (size_t j = 0; j < active.size(); ++j) {
    SampleRow& row = rows[active[j]];
    const std::span<float> copy(processed.data() + j * vocab, vocab);
    std::copy_n(logits.data() + active[j] * vocab, vocab, copy.begin());
    processors[active[j]]->apply(copy, row.params.temperature);
    row.processed = processed_.as<float>() + j * vocab;
  }
  memory.upload(processed_.data(), processed.data(), bytes);
}

}  // namespace perigee
