// The walk through the layers: residual stream, AttnRes banks, mixers, MLPs, head.
#include <algorithm>

#include "base/error.h"
#include "model/step.h"

namespace perigee {

void Batch::add(SequenceCache& cache, std::span<const int32_t> new_tokens, int drafts, int logits) {
  const int count = static_cast<int>(new_tokens.size());
  check(count > 0 && drafts >= 0 && drafts <= count && logits <= count,
        "Batch::add: no row, or too many drafts or logits");
  check(drafts <= KdaSlot::kRing - 3 - kChunk, "Batch::add: more drafts than a slot keeps rows");
  SequenceRows rows{.first_row = this->rows(), .rows = count, .start = cache.length(), .accepted = 0};
  rows.accepted = rows.start + count - drafts;
  tokens.insert(tokens.end(), new_tokens.begin(), new_tokens.end());
  for (int i = count - logits; i < count; ++i) logit_rows.push_back(rows.first_row + i);
  sequences.push_back(rows);
  caches.push_back(&cache);
  cache.reserve(rows.start + count, rows.accepted);
}

StepCaches::StepCaches(const ModelConfig& config, const Batch& batch, const StepControls& controls) {
  const int kda_layers = static_cast<int>(std::count(config.is_kda.begin(), config.is_kda.end(), true));
  slots.resize(kda_layers);
  pages.resize(config.num_layers - kda_layers);
  for (size_t s = 0; s < batch.caches.size(); ++s) {
    SequenceCache& cache = *batch.caches[s];
    page_count.push_back(cache.page_count());
    for (size_t layer = 0; layer < slots.size(); ++layer) {
      slots[layer].push_back(cache.slot(static_cast<int>(layer)));
      if (controls.poison_state && batch.sequences[s].rows > 1) {  // what hangs on the state shows
        slots[layer].back().state = cache.zero_state();
        slots[layer].back().state_stride = 0;
      }
    }
    for (size_t layer = 0; layer < pages.size(); ++layer)
      pages[layer].push_back(cache.pages(static_cast<int>(layer)));
  }
}

namespace {

void walk_layers(const Step& step, float* logits) {
  Arena::Scope scope(step.arena);
  const ModelConfig& config = step.config;
  const Weights& weights = step.weights;
  const int rows = step.rows(), hidden = config.hidden_size, lanes = step.plan.lanes;
  const int64_t n = int64_t{rows} * hidden;
  bf16* stream = step.arena.take<bf16>(n);
  bf16* x = step.arena.take<bf16>(n);
  float* partial = step.arena.take<float>(lanes * n);
  std::vector<const bf16*> banks;
  const auto mix_norm = [&](const AttnResWeights& res, const float* norm) {
    step.backend.attn_res_mix({.stream = stream,
                               .banks = banks,
                               .score = res.score,
                               .norm = norm,
                               .eps = config.rms_norm_eps,
                               .out = x,
                               .rows = rows,
                               .hidden = hidden});
  };

  step.backend.embed(
      {.table = weights.embedding, .tokens = step.batch.tokens, .out = stream, .hidden = hidden});
  int kda_index = 0, attention_index = 0;
  for (int i = 0; i < config.num_layers; ++i) {
    const LayerWeights& layer = weights.layers[i];
    mix_norm(layer.attn_res, layer.input_norm);
    const bool block_start = config.has_attn_res() && i % config.attn_res_block_size == 0;
    if (block_start) {  // the raw stream is banked after the mix read the older banks, and starts anew
      banks.push_back(stream);
      stream = step.arena.take<bf16>(n);
    }
    if (config.is_kda[i]) {
      kda_mixer(step, std::get<KdaWeights>(layer.attention), kda_index++, x, partial);
    } else {
      mla_mixer(step, std::get<MlaWeights>(layer.attention), i, attention_index++, x, partial);
    }
    step.backend.lane_reduce({.partial = partial,
                              .stream = stream,
                              .restart = block_start,
                              .lanes = lanes,
                              .rows = rows,
                              .hidden = hidden});
    mix_norm(layer.mlp_res, layer.post_norm);
    mlp_block(step, layer, i, x, stream);
    if (step.trace) {
      std::vector<float>& out = step.trace->output[i];
      for (bf16 x : to_host(step.backend.memory(), stream, n)) out.push_back(bf16_to_float(x));
    }
  }
  mix_norm(weights.output_res, weights.final_norm);
  step.backend.lm_head({.weight = weights.lm_head, .x = x, .rows = step.batch.logit_rows, .logits = logits});
}

}  // namespace

void forward(const Step& step, float* logits) {
  const bool enqueued = step.backend.begin_step({.tokens = step.batch.tokens,
                                                 .logit_rows = step.batch.logit_rows,
                                                 .sequences = step.batch.sequences,
                                                 .slots = step.caches.slots,
                                                 .pages = step.caches.pages,
                                                 .page_count = step.caches.page_count,
                                                 .repeatable = !step.trace && !step.controls.random_index});
  if (!enqueued) {
    walk_layers(step, logits);
    step.backend.end_step();
  }
  for (size_t s = 0; s < step.batch.caches.size(); ++s) {
    const SequenceRows& seq = step.batch.sequences[s];
    step.batch.caches[s]->set_length(seq.start + seq.rows);
  }
}

CacheShape cache_shape(const ModelConfig& config, LatentFormat latent, IndexKeyFormat index,
                       int tensor_parallel) {
  CacheShape shape{.attention_has_index = {},
                   .kda_layers = 0,
                   .kda_heads = config.kda.num_heads / tensor_parallel,
                   .latent_format = latent,
                   .index_format = index,
                   .latent_scale = 1.0f};
  for (int i = 0; i < config.num_layers; ++i) {
    if (config.is_kda[i]) {
      ++shape.kda_layers;
    } else {
      shape.attention_has_index.push_back(config.is_dsa(i));
    }
  }
  return shape;
}

}  // namespace perigee
