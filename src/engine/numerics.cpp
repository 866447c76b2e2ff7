#include "engine/numerics.h"

#include <fmt/format.h>

namespace perigee {

namespace {
// FNV-1a, 64 bits: an identity check between well-meaning engines, not a signature.
uint64_t fnv1a(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3u;
  return hash;
}

// Every number of the config that the arithmetic reads, in a fixed order.
std::string config_text(const ModelConfig& c) {
  std::string kda_layers;
  for (bool kda : c.is_kda) kda_layers += kda ? 'K' : 'M';
  std::string text = fmt::format(
      "hidden {} layers {} vocab {} dense {} act {} {} {} eps {} tied {} attn_res {}\n", c.hidden_size,
      kda_layers, c.vocab_size, c.intermediate_size, static_cast<int>(c.activation), c.situ_beta,
      c.situ_linear_beta, c.rms_norm_eps, c.tie_word_embeddings, c.attn_res_block_size);
  text += fmt::format("kda {} {} {} {} {}\n", c.kda.num_heads, c.kda.head_dim, c.kda.conv_kernel,
                      c.kda.gate_lower_bound.value_or(0.0f), c.kda.full_rank_gate);
  text += fmt::format("mla {} {} {} {} {} {} {}\n", c.mla.num_heads, c.mla.q_lora_rank, c.mla.kv_lora_rank,
                      c.mla.qk_nope_head_dim, c.mla.qk_rope_head_dim, c.mla.v_head_dim, c.mla.output_gate);
  if (c.dsa) {
    text += fmt::format("dsa {} {} {} [{}]\n", c.dsa->num_heads, c.dsa->head_dim, c.dsa->top_k,
                        fmt::join(c.dsa->layers, ","));
  }
  const MoeConfig& m = c.moe;
  text += fmt::format("moe {} {} {} {} {} {} {} {} {} {} {}\n", m.num_experts, m.experts_per_token,
                      m.num_shared_experts, m.intermediate_size, m.latent_size, m.latent_norm, m.renormalize,
                      m.routed_scaling_factor, m.first_dense_layers, m.layer_freq, c.mxfp4_experts);
  return text;
}

std::string hex(uint64_t x) { return fmt::format("{:016x}", x); }

}  // namespace

NumericsIdentity numerics_identity(const ModelConfig& config, const std::string& weights_digest,
                                   const Precision& precision, const ReductionPlan& plan,
                                   const std::string& architecture) {
  NumericsIdentity id;
  id.fields = {
      {"architecture", architecture},
      {"model", config.architecture},
      {"config", hex(fnv1a(config_text(config)))},
      {"weights", weights_digest},
      {"kv_cache_dtype", std::string(latent_format_name(precision.latent))},
      {"index_cache_dtype", config.dsa ? std::string(index_key_format_name(precision.index)) : "none"},
      {"index_topk", config.dsa ? std::to_string(config.dsa->top_k) : "none"},
      {"lanes", std::to_string(plan.lanes)},
      {"attention_lanes", std::to_string(plan.attention_lanes)},
      {"moe_lanes", plan.moe_lanes_expert ? "expert" : "tensor"},
      {"mla_prefill", "absorbed"},
      {"kda_chunk", std::to_string(kChunk)},
      {"key_tile", std::to_string(kKeyTile)},
      {"dense_segment", std::to_string(plan.dense_segment)},
  };
  std::string text;
  for (const auto& [key, value] : id.fields) text += key + "=" + value + "\n";
  id.digest = hex(fnv1a(text));
  return id;
}

}  // namespace perigee
