// Runner: executes a Batch through the layers on this rank, and owns the backend and the workspace of a step.
#pragma once

#include <memory>
#include <vector>

#include "cache/cache_pool.h"
#include "engine/backends.h"
#include "engine/logits.h"
#include "engine/numerics.h"
#include "engine/stage_clock.h"
#include "model/step.h"

namespace perigee {

struct RunnerOptions {
  Precision precision;
  ReductionPlan plan;
  int threads = 0;             // 0: all hardware threads
  std::string tile_folder;     // keeps the tiles of big models (tile_weights.h); empty: nowhere
  std::string device = "cpu";  // see make_backend
  // "plain", "avx2", "avx512", or the fastest this CPU can run: the same bits.
  std::string cpu_kernels = "auto";
  // Of the pool, slots included; 0: half of the machine's memory, or what a GPU's share has left.
  int64_t cache_bytes = 0;
  int64_t cache_rows = 0;  // of the pool, whatever their bytes; 0: as cache_bytes says
  bool cuda_graphs = true;
  double gpu_memory_utilization = 0.9;  // share of a GPU's memory for weights, workspace and cache
  int step_tokens = 0;                  // of the largest step; 0: as batched_tokens says
  int64_t sequences = 256;              // that may be live at once, where their slots fit cache_bytes
  int64_t block_tokens = 0;             // of a row; 0: the planner's choice
};

class Runner {
 public:
  // Throws Error{kUsage} naming the flag when the plan does not fit the model, or the model the GPU's share.
  Runner(ModelConfig config, Weights weights, const RunnerOptions& options);

  const ModelConfig& config() const { return config_; }
  const NumericsIdentity& numerics() const { return numerics_; }
  CachePool& pool() { return *pool_; }
  const CachePool& pool() const { return *pool_; }
  const CacheShape& cache_shape() const { return pool_->shape(); }
  Memory& memory() { return backend_->memory(); }
  int threads() const { return threads_; }
  int lanes() const { return plan_.lanes; }
  std::string kernels() const { return backend_->kernels(); }

  // Adds every stage's time to `times` while steps are computed, on the host; null ends it.
  void clock_stages(StageTimes* times) { stage_times_ = times; }

  // Faults for the steps that follow, for `perigee eval`'s controls.
  void set_controls(const StepControls& controls) { controls_ = controls; }

  // Computes the batch and appends its rows to the caches.
  void compute(const Batch& batch, StepTrace* trace = nullptr);
  // logits[batch.logit_rows.size(), vocab] of the last batch; brought from the device when first asked for.
  std::span<const float> logits();
  // Both.
  std::span<const float> step(const Batch& batch, StepTrace* trace = nullptr) {
    compute(batch, trace);
    return logits();
  }

  struct Sampled {
    int32_t token = 0;
    float logprob = 0;  // raw log-probability: temperature 1, no token left out
    float log_norm = 0;
  };
  // Draws one token per row of the last batch's logits, while the host goes on; position[i] is where the
  // token of row i will stand. Row i is drawn from its logits as processors[i] leaves them (null, or no
  // processors: as they are); the log-probabilities are those of the model's own logits. The next batch may
  // be computed before collect(): this one's tokens are drawn_token(i) there. At most two draws are open.
  // Waits for the logits when a processor is active, and for nothing else.
  void draw(std::span<const SampleParams> params, std::span<const int64_t> positions,
            std::span<const LogitsProcessor* const> processors = {}, bool keep_logits = false);
  struct Outcome {
    std::vector<Sampled> sampled;   // [rows]
    std::span<const float> logits;  // [rows, vocab] if they were kept; valid until the draw after the next
  };
  // Waits for the oldest open draw. forget() takes none of its results instead.
  Outcome collect();
  void forget() { ++collected_; }
  int64_t open_draws() const { return draws_ - collected_; }
  std::vector<Sampled> sample(std::span<const SampleParams> params, std::span<const int64_t> positions,
                              std::span<const LogitsProcessor* const> processors = {}) {
    draw(params, positions, processors);
    return collect().sampled;
  }

 private:
  void take_workspace(const CacheShape& shape, int tokens, int logit_rows);
  // Where a draw's parameters and results are staged.
  struct Draw {
    MemoryBlock rows, drawn, logits;
    int count = 0;
    bool keeps_logits = false;
    int64_t mark = 0;
  };
  void process(std::span<SampleRow> rows, std::span<const LogitsProcessor* const> processors);

  ModelConfig config_;
  Weights weights_;
  ReductionPlan plan_;
  int threads_;
  std::unique_ptr<Backend> backend_;  // first of what lies in its memory
  std::unique_ptr<CachePool> pool_;
  NumericsIdentity numerics_;
  std::unique_ptr<Arena> arena_;
  StepControls controls_;
  StageTimes* stage_times_ = nullptr;
  int64_t logit_count_ = 0;
  MemoryBlock logits_, processed_;  // [rows, vocab], [processed rows, vocab]
  MemoryBlock last_logits_;         // on the host: those of the batch before
  MemoryBlock host_logits_;         // of a device, staged
  bool logits_on_host_ = false;
  Draw open_[2];
  int64_t draws_ = 0, collected_ = 0;
};

}  // namespace perigee
