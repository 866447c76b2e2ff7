// The walk over the arrays of Weights that are no matrices.
#include "model/weights.h"

namespace perigee {

void for_each_array(Weights& weights, const ModelConfig& config, const std::function<void(Array)>& visit) {
  const auto floats = [&](const float*& at, int64_t count) {
    if (at) visit({.at = reinterpret_cast<const void**>(&at), .bytes = count * int64_t{sizeof(float)}});
  };
  const int64_t hidden = config.hidden_size, D = int64_t{config.kda.num_heads} * config.kda.head_dim;
  visit({.at = reinterpret_cast<const void**>(&weights.embedding),
         .bytes = int64_t{config.vocab_size} * hidden * int64_t{sizeof(bf16)}});
  floats(weights.final_norm, hidden);
  floats(weights.output_res.score, hidden);
  for (LayerWeights& layer : weights.layers) {
    for (const float** norm :
         {&layer.input_norm, &layer.post_norm, &layer.attn_res.score, &layer.mlp_res.score})
      floats(*norm, hidden);
    if (auto* kda = std::get_if<KdaWeights>(&layer.attention)) {
      for (const float** taps : {&kda->conv_q, &kda->conv_k, &kda->conv_v})
        floats(*taps, D * config.kda.conv_kernel);
      floats(kda->a_log, config.kda.num_heads);
      floats(kda->dt_bias, D);
      floats(kda->o_norm, config.kda.head_dim);
    } else {
      auto& mla = std::get<MlaWeights>(layer.attention);
      floats(mla.q_a_norm, config.mla.q_lora_rank);
      floats(mla.kv_a_norm, config.mla.kv_lora_rank);
      if (mla.indexer) {
        floats(mla.indexer->k_norm, config.dsa->head_dim);
        floats(mla.indexer->k_norm_bias, config.dsa->head_dim);
      }
    }
    if (auto* moe = std::get_if<MoeWeights>(&layer.mlp)) {
      floats(moe->router_bias, config.moe.num_experts);
      floats(moe->latent_norm, config.moe.latent_size);
    }
  }
}

}  // namespace perigee
