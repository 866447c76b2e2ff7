// One step of the model: the rows to compute, and what every layer function needs to compute them.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/arena.h"
#include "cache/sequence_cache.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace perigee {

// The rows of one step: consecutive rows of one or more sequences.
struct Batch {
  std::vector<int32_t> tokens;          // [rows] as in EmbedArgs
  std::vector<SequenceRows> sequences;  // in row order
  std::vector<SequenceCache*> caches;   // one per sequence; rooms for the rows are reserved by the step
  std::vector<int> logit_rows;          // rows whose logits are wanted

  int rows() const { return static_cast<int>(tokens.size()); }
  // Appends `new_tokens` of a sequence whose cache holds what came before; the last `drafts` of them may be
  // rejected. Logits are wanted for the last `logits` of them.
  void add(SequenceCache& cache, std::span<const int32_t> new_tokens, int drafts, int logits);
};

// What a test or a tool may look at: selections and the residual stream after each layer.
struct StepTrace {
  std::map<int, std::vector<int32_t>> selected;  // DSA layer → [rows, top_k]
  std::map<int, std::vector<int32_t>> experts;   // MoE layer → [rows, k]
  std::map<int, std::vector<float>> output;      // layer → [rows, hidden]
};

// Faults made on purpose, so that a score can be shown to hang on what they break. No part of the numerics
// identity: what is computed under them is no answer of the model.
struct StepControls {
  bool random_index = false;  // sparse attention reads as many keys, drawn at random
  bool poison_state = false;  // KDA states are zero at the start of every step of several rows a sequence
};

// What the layers see of the batch's caches: one entry a sequence.
struct StepCaches {
  StepCaches(const ModelConfig& config, const Batch& batch, const StepControls& controls);

  std::vector<std::vector<KdaSlot>> slots;    // per KDA layer
  std::vector<std::vector<PageTable>> pages;  // per attention layer
  std::vector<int64_t> page_count;            // [sequences]
};

struct Step {
  Backend& backend;
  const ModelConfig& config;
  const Weights& weights;
  const ReductionPlan& plan;
  Arena& arena;
  const Batch& batch;
  const StepCaches& caches;
  StepTrace* trace = nullptr;
  StepControls controls = {};

  int rows() const { return batch.rows(); }
};

// Adds nothing, writes partial[lanes, rows, hidden]: the mixer of a KDA layer on normed input x[rows,
// hidden].
void kda_mixer(const Step& step, const KdaWeights& weights, int kda_index, const bf16* x, float* partial);
// The same for an MLA layer, dense or sparse.
void mla_mixer(const Step& step, const MlaWeights& weights, int layer, int attention_index, const bf16* x,
               float* partial);
// stream += MLP(x), dense or mixture of experts.
void mlp_block(const Step& step, const LayerWeights& weights, int layer, const bf16* x, bf16* stream);

// All layers and the head: logits[batch.logit_rows.size(), vocab], in the backend's memory.
void forward(const Step& step, float* logits);

// The cache a sequence of this model needs on one of `tensor_parallel` ranks.
CacheShape cache_shape(const ModelConfig& config, LatentFormat latent, IndexKeyFormat index,
                       int tensor_parallel = 1);

}  // namespace perigee
