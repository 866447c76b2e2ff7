// What a step of a model has to read and to compute at least, whatever the kernels: the two numbers that a
// roofline divides by the machine's ceilings.
//
// Bytes read, each once a step:
//   weights     every tensor of the text model but the embedding table, as the checkpoint stores it (bf16;
//               MXFP4 with its scales), the routed experts only as far as some row of the step chose them
//   latents     of a dense layer every token before the step; of a DSA layer min(top_k, those tokens), since
//               selection is a gather: the rows of one sequence may select the same keys
//   index keys  of a DSA layer every token before the step, values and scales
//   KDA         S of every head (fp32), the three conv inputs before the step, and the chunk rows k, G, w, T:
//               7.5 of them, the mean over positions of a chunk
// Nothing is counted for activations, for what the step itself writes, or for the embedding rows.
//
// Floating point operations, two a multiply-add:
//   weights     each matrix once a row; the experts a row chose; the head for the rows that want logits
//   attention   576 (logit) + 512 (value) multiply-adds a head and key that the row sees or selected
//   index       128 multiply-adds an index head and visible key
//   KDA         three products with S or into it (128 × 128) and the sums inside the chunk, in fp32
// Nothing is counted for norms, mixing, elementary functions, selection or decoding of stored formats.
#pragma once

#include <initializer_list>

#include "formats/cache_records.h"
#include "model/config.h"
#include "ops/weights.h"

namespace perigee {

struct StepShape {
  int sequences = 1;
  int rows = 1;                 // new tokens of each sequence
  int64_t depth = 0;            // tokens of each sequence before the step
  int logit_rows = 1;           // rows of each sequence that want logits
  double distinct_experts = 0;  // experts that some row of the step chose, mean over the MoE layers
  LatentFormat latent = LatentFormat::kBf16;
  IndexKeyFormat index = IndexKeyFormat::kFp8;
};

struct Cost {
  double bytes = 0, flops = 0;
};

Cost step_cost(const ModelConfig& config, const StepShape& step);

// The parts of it that the cache adds, for one sequence and one layer of the kind.
Cost kda_state_cost(const KdaConfig& config, int rows);
Cost latent_cost(const MlaConfig& config, LatentFormat format, int rows, int64_t depth);
Cost selected_latent_cost(const MlaConfig& config, LatentFormat format, int top_k, int rows, int64_t depth);
Cost index_cost(const DsaConfig& config, IndexKeyFormat format, int rows, int64_t depth);

// Matrices read once and multiplied with every row; an expert's three as they are stored.
Cost matrix_cost(std::initializer_list<const Linear*> matrices, int rows);
double expert_bytes(const MoeWeights::Expert& expert);

inline Cost operator+(const Cost& a, const Cost& b) { return {a.bytes + b.bytes, a.flops + b.flops}; }

}  // namespace perigee
