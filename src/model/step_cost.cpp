#include "model/step_cost.h"

#include <algorithm>

#include "model/summary.h"
#include "ops/plan.h"

namespace perigee {

namespace {

// Σ over the step's rows of the keys a row sees, at most `limit` of them.
double visible_keys(int rows, int64_t depth, int64_t limit) {
  double keys = 0;
  for (int i = 0; i < rows; ++i) keys += static_cast<double>(std::min(depth + i + 1, limit));
  return keys;
}

constexpr int64_t kNoLimit = INT64_MAX;

double attend_flops(const MlaConfig& config, double keys) {
  return 2.0 * config.num_heads * (config.latent_dim() + config.kv_lora_rank) * keys;
}

}  // namespace

Cost kda_state_cost(const KdaConfig& config, int rows) {
  const double heads = config.num_heads, dim = config.head_dim, width = heads * dim;
  constexpr double kChunkRows = (kChunk - 1) / 2.0;
  const double row_bytes = width * (2 + 4 + 4) + heads * kChunk * 4;  // k, G, w; T
  const double state = heads * dim * dim, conv = (config.conv_kernel - 1) * 3 * width * 2;
  // Row i of a chunk: A over the rows before it; M, u and M·u over those and itself.
  const double inside = heads * dim * (kChunkRows + 3 * (kChunkRows + 1));
  return {.bytes = state * 4 + conv + kChunkRows * row_bytes, .flops = 2 * rows * (3 * state + inside)};
}

Cost latent_cost(const MlaConfig& config, LatentFormat format, int rows, int64_t depth) {
  return {.bytes = static_cast<double>(depth) * latent_bytes(format),
          .flops = attend_flops(config, visible_keys(rows, depth, kNoLimit))};
}

Cost selected_latent_cost(const MlaConfig& config, LatentFormat format, int top_k, int rows, int64_t depth) {
  return {.bytes = static_cast<double>(std::min<int64_t>(top_k, depth)) * latent_bytes(format),
          .flops = attend_flops(config, visible_keys(rows, depth, top_k))};
}

Cost index_cost(const DsaConfig& config, IndexKeyFormat format, int rows, int64_t depth) {
  return {.bytes = static_cast<double>(depth) * index_key_bytes(format),
          .flops = 2.0 * config.num_heads * config.head_dim * visible_keys(rows, depth, kNoLimit)};
}

Cost matrix_cost(std::initializer_list<const Linear*> matrices, int rows) {
  Cost cost;
  for (const Linear* w : matrices) {
    const double values = static_cast<double>(w->out) * w->in;
    cost.bytes += values * sizeof(bf16);
    cost.flops += 2 * values * rows;
  }
  return cost;
}

double expert_bytes(const MoeWeights::Expert& expert) {
  double bytes = 0;
  for (const ExpertLinear* linear : {&expert.gate, &expert.up, &expert.down}) {
    if (const auto* w = std::get_if<Mxfp4Linear>(linear)) {
      bytes += static_cast<double>(w->out) * w->in * (0.5 + 1.0 / 32);
    } else {
      const auto& matrix = std::get<Linear>(*linear);
      bytes += static_cast<double>(matrix.out) * matrix.in * sizeof(bf16);
    }
  }
  return bytes;
}

Cost step_cost(const ModelConfig& config, const StepShape& step) {
  const ModelSummary s = summarize(config);
  const auto bytes_of = [&](TensorKind kind) {
    return static_cast<double>(s.bytes_by_kind[static_cast<int>(kind)]);
  };
  const double head = static_cast<double>(config.vocab_size) * config.hidden_size;
  double bytes =
      static_cast<double>(s.bytes) - bytes_of(TensorKind::kEmbedding) - bytes_of(TensorKind::kVision);
  if (config.tie_word_embeddings) bytes += bytes_of(TensorKind::kEmbedding);  // it is the head
  if (config.moe.num_experts > 0)
    bytes -= bytes_of(TensorKind::kRoutedExperts) * (1 - step.distinct_experts / config.moe.num_experts);
  const double row_flops = 2 * (static_cast<double>(s.active_parameters) - head);
  double flops = step.sequences * (step.rows * row_flops + step.logit_rows * 2 * head);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const auto add = [&](const Cost& cost) {
      bytes += step.sequences * cost.bytes;
      flops += step.sequences * cost.flops;
    };
    if (config.is_kda[layer]) {
      add(kda_state_cost(config.kda, step.rows));
    } else if (config.is_dsa(layer)) {
      add(index_cost(*config.dsa, step.index, step.rows, step.depth));
      add(selected_latent_cost(config.mla, step.latent, config.dsa->top_k, step.rows, step.depth));
    } else {
      add(latent_cost(config.mla, step.latent, step.rows, step.depth));
    }
  }
  return {.bytes = bytes, .flops = flops};
}

}  // namespace perigee
