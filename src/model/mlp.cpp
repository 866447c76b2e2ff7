// The MLP half of a layer: dense, or router → experts (+ shared) → combine.
#include "model/step.h"

namespace perigee {

namespace {

void dense_mlp(const Step& step, const GluWeights& weights, ActivationParams activation, const bf16* x,
               bf16* stream) {
  const int rows = step.rows(), hidden = step.config.hidden_size, lanes = step.plan.lanes;
  float* partial = step.arena.take<float>(int64_t{lanes} * rows * hidden);
  step.backend.glu_mlp({.weights = weights,
                        .activation = activation,
                        .x = x,
                        .partial = partial,
                        .rows = rows,
                        .lanes = lanes});
  step.backend.lane_reduce({.partial = partial,
                            .stream = stream,
                            .restart = false,
                            .lanes = lanes,
                            .rows = rows,
                            .hidden = hidden});
}

void moe(const Step& step, const MoeWeights& weights, ActivationParams activation, int layer, const bf16* x,
         bf16* stream) {
  const MoeConfig& config = step.config.moe;
  const int rows = step.rows(), hidden = step.config.hidden_size, lanes = step.plan.lanes;
  const int in = config.expert_input_size(hidden), k = config.experts_per_token;
  int32_t* experts = step.arena.take<int32_t>(int64_t{rows} * k);
  float* expert_weight = step.arena.take<float>(int64_t{rows} * k);
  bf16* z = config.latent_size ? step.arena.take<bf16>(int64_t{rows} * in) : nullptr;
  float* routed = step.arena.take<float>(int64_t{lanes} * rows * in);
  float* shared = weights.shared ? step.arena.take<float>(int64_t{lanes} * rows * hidden) : nullptr;

  step.backend.moe_route({.weights = weights,
                          .config = config,
                          .x = x,
                          .experts = experts,
                          .expert_weight = expert_weight,
                          .z = z,
                          .rows = rows});
  if (step.trace) step.trace->experts[layer] = to_host(step.backend.memory(), experts, int64_t{rows} * k);
  step.backend.moe_experts({.weights = weights,
                            .config = config,
                            .activation = activation,
                            .z = z ? z : x,
                            .experts = experts,
                            .expert_weight = expert_weight,
                            .partial = routed,
                            .rows = rows,
                            .in = in,
                            .lanes = lanes,
                            .lanes_expert = step.plan.moe_lanes_expert});
  if (shared) {
    step.backend.glu_mlp({.weights = *weights.shared,
                          .activation = activation,
                          .x = x,
                          .partial = shared,
                          .rows = rows,
                          .lanes = lanes});
  }
  step.backend.moe_combine({.weights = weights,
                            .config = config,
                            .routed = routed,
                            .shared = shared,
                            .stream = stream,
                            .eps = step.config.rms_norm_eps,
                            .rows = rows,
                            .hidden = hidden,
                            .lanes = lanes});
}

}  // namespace

void mlp_block(const Step& step, const LayerWeights& weights, int layer, const bf16* x, bf16* stream) {
  Arena::Scope scope(step.arena);
  const ActivationParams activation{.kind = step.config.activation,
                                    .beta = step.config.situ_beta,
                                    .linear_beta = step.config.situ_linear_beta};
  if (const auto* dense = std::get_if<GluWeights>(&weights.mlp)) {
    dense_mlp(step, *dense, activation, x, stream);
  } else {
    moe(step, std::get<MoeWeights>(weights.mlp), activation, layer, x, stream);
  }
}

}  // namespace perigee
