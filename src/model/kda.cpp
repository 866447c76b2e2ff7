// The KDA mixer: project → conv, norm → chunk rows → output.
#include "model/step.h"

namespace perigee {

void kda_mixer(const Step& step, const KdaWeights& weights, int kda_index, const bf16* x, float* partial) {
  Arena::Scope scope(step.arena);
  const KdaConfig& config = step.config.kda;
  const int rows = step.rows(), heads = config.num_heads;
  const int64_t n = int64_t{rows} * heads * config.head_dim;
  bf16* conv_input = step.arena.take<bf16>(3 * n);
  bf16* gate = step.arena.take<bf16>(n);
  float* g = step.arena.take<float>(n);
  float* beta = step.arena.take<float>(int64_t{rows} * heads);
  bf16* q = step.arena.take<bf16>(n);
  bf16* k = step.arena.take<bf16>(n);
  bf16* v = step.arena.take<bf16>(n);
  float* o = step.arena.take<float>(n);
  const std::span<const KdaSlot> slots = step.caches.slots[kda_index];

  step.backend.kda_project({.weights = weights,
                            .config = config,
                            .x = x,
                            .conv_input = conv_input,
                            .gate = gate,
                            .g = g,
                            .beta = beta,
                            .rows = rows});
  step.backend.kda_conv_norm_gate({.weights = weights,
                                   .config = config,
                                   .sequences = step.batch.sequences,
                                   .slots = slots,
                                   .conv_input = conv_input,
                                   .q = q,
                                   .k = k,
                                   .v = v});
  step.backend.kda_chunk({.config = config,
                          .sequences = step.batch.sequences,
                          .slots = slots,
                          .conv_input = conv_input,
                          .q = q,
                          .k = k,
                          .v = v,
                          .g = g,
                          .beta = beta,
                          .out = o});
  step.backend.kda_output({.weights = weights,
                           .config = config,
                           .o = o,
                           .gate = gate,
                           .eps = step.config.rms_norm_eps,
                           .partial = partial,
                           .rows = rows,
                           .lanes = step.plan.lanes});
}

}  // namespace perigee
