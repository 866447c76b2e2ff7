#include "model/summary.h"

namespace perigee {

ModelSummary summarize(const ModelConfig& config) {
  ModelSummary s;
  s.architecture = config.architecture;
  for_each_tensor(config, [&](const TensorSpec& t) {
    if (t.optional) return;
    const int kind = static_cast<int>(t.kind);
    const int64_t bytes = element_count(t.shape) * static_cast<int64_t>(dtype_size(t.dtype));
    s.tensors += 1;
    s.parameters += t.parameters;
    s.bytes += bytes;
    s.tensors_by_kind[kind] += 1;
    s.parameters_by_kind[kind] += t.parameters;
    s.bytes_by_kind[kind] += bytes;
  });
  const auto of = [&](TensorKind kind) { return s.parameters_by_kind[static_cast<int>(kind)]; };
  const int64_t routed = of(TensorKind::kRoutedExperts);
  s.active_parameters = s.parameters - of(TensorKind::kVision) - of(TensorKind::kEmbedding) - routed;
  if (config.tie_word_embeddings) s.active_parameters += of(TensorKind::kEmbedding);  // it is the head
  if (config.moe.num_experts > 0)
    s.active_parameters += routed / config.moe.num_experts * config.moe.experts_per_token;
  return s;
}

int64_t rank_weight_bytes(const ModelConfig& config, int tensor_parallel) {
  int64_t whole = 0, cut = 0;
  for_each_tensor(config, [&](const TensorSpec& t) {
    if (t.optional || t.kind == TensorKind::kVision) return;
    const bool down_projection = t.name.find(".q_a_proj.") != std::string::npos ||
                                 t.name.find(".kv_a_proj_with_mqa.") != std::string::npos;
    const bool replicated = t.kind == TensorKind::kNorm || t.kind == TensorKind::kAttnRes ||
                            t.kind == TensorKind::kIndexer || t.kind == TensorKind::kRouter ||
                            down_projection;
    (replicated ? whole : cut) += element_count(t.shape) * static_cast<int64_t>(dtype_size(t.dtype));
  });
  return whole + (cut + tensor_parallel - 1) / tensor_parallel;
}

}  // namespace perigee
