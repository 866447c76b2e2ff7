// The MLA mixer, absorbed: project → (index) → query → (select) → attend → output.
#include "model/step.h"

namespace perigee {

namespace {

// Replaces every selection by as many positions of the row's past, drawn without replacement: each position
// is taken with the chance that the rest still needs it. A fixed hash of layer, row and position draws.
void randomise(const Step& step, int layer, int top_k, int32_t* device_selected,
               const int32_t* device_count) {
  Memory& memory = step.backend.memory();
  std::vector<int32_t> selected = to_host(memory, device_selected, int64_t{step.rows()} * top_k);
  const std::vector<int32_t> count = to_host(memory, device_count, step.rows());
  for (const SequenceRows& s : step.batch.sequences) {
    for (int i = 0; i < s.rows; ++i) {
      const int row = s.first_row + i;
      const int64_t keys = s.start + i + 1;
      uint64_t x = static_cast<uint64_t>(keys) * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(layer);
      int taken = 0;
      for (int64_t position = 0; taken < count[row]; ++position) {
        x = (x ^ (x >> 31)) * 0xD6E8FEB86659FD93u + 1;
        const uint64_t left = static_cast<uint64_t>(keys - position);
        if ((x >> 32) % left < static_cast<uint64_t>(count[row] - taken))
          selected[int64_t{row} * top_k + taken++] = static_cast<int32_t>(position);
      }
    }
  }
  memory.upload(device_selected, selected.data(), static_cast<int64_t>(selected.size() * sizeof(int32_t)));
}

}  // namespace

void mla_mixer(const Step& step, const MlaWeights& weights, int layer, int attention_index, const bf16* x,
               float* partial) {
  Arena::Scope scope(step.arena);
  const MlaConfig& config = step.config.mla;
  const int rows = step.rows(), heads = config.num_heads;
  const bool sparse = step.config.is_dsa(layer);
  const int index_heads = sparse ? step.config.dsa->num_heads : 0,
            index_dim = sparse ? step.config.dsa->head_dim : 0;
  const auto take_bf16 = [&](int64_t width) { return step.arena.take<bf16>(rows * width); };
  bf16* q_a = take_bf16(config.q_lora_rank);
  bf16* cq = take_bf16(config.q_lora_rank);
  bf16* kv_a = take_bf16(config.latent_dim());
  bf16* gate = config.output_gate ? take_bf16(int64_t{heads} * config.v_head_dim) : nullptr;
  bf16* query = take_bf16(int64_t{heads} * config.latent_dim());
  bf16* z = take_bf16(int64_t{heads} * config.kv_lora_rank);
  bf16* index_key = take_bf16(index_dim);
  bf16* index_query = take_bf16(int64_t{index_heads} * index_dim);
  float* index_weight = step.arena.take<float>(int64_t{rows} * index_heads);
  const std::span<const PageTable> pages = step.caches.pages[attention_index];
  const float eps = step.config.rms_norm_eps;
  const std::span<const SequenceRows> sequences = step.batch.sequences;

  step.backend.mla_project({.weights = weights,
                            .x = x,
                            .q_a = q_a,
                            .kv_a = kv_a,
                            .gate = gate,
                            .index_key = index_key,
                            .index_weight = index_weight,
                            .rows = rows});
  if (config.q_lora_rank > 0) {
    step.backend.index_front({.weights = weights,
                              .q_a = q_a,
                              .index_key = index_key,
                              .index_weight = index_weight,
                              .eps = eps,
                              .cq = cq,
                              .index_query = index_query,
                              .sequences = sequences,
                              .pages = pages,
                              .rows = rows});
  }
  step.backend.mla_query({.weights = weights,
                          .config = config,
                          .q_input = config.q_lora_rank > 0 ? cq : x,
                          .kv_a = kv_a,
                          .eps = eps,
                          .query = query,
                          .sequences = sequences,
                          .pages = pages,
                          .rows = rows});
  AttendArgs attend{.config = config,
                    .query = query,
                    .sequences = sequences,
                    .pages = pages,
                    .selected = nullptr,
                    .count = nullptr,
                    .top_k = 0,
                    .attention_lanes = step.plan.attention_lanes,
                    .dense_segment = step.plan.dense_segment,
                    .out = z};
  if (sparse) {
    const DsaConfig& dsa = *step.config.dsa;
    int32_t* selected = step.arena.take<int32_t>(int64_t{rows} * dsa.top_k);
    int32_t* count = step.arena.take<int32_t>(rows);
    step.backend.index_select({.config = dsa,
                               .index_query = index_query,
                               .index_weight = index_weight,
                               .sequences = sequences,
                               .pages = pages,
                               .selected = selected,
                               .count = count});
    if (step.controls.random_index) randomise(step, layer, dsa.top_k, selected, count);
    if (step.trace)
      step.trace->selected[layer] = to_host(step.backend.memory(), selected, int64_t{rows} * dsa.top_k);
    attend.selected = selected;
    attend.count = count;
    attend.top_k = dsa.top_k;
    step.backend.sparse_attend(attend);
  } else {
    step.backend.dense_attend(attend);
  }
  step.backend.mla_output({.weights = weights,
                           .config = config,
                           .z = z,
                           .gate = gate,
                           .partial = partial,
                           .rows = rows,
                           .lanes = step.plan.lanes});
}

}  // namespace perigee
