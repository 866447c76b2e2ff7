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

std::string hex(uint64_t x) { return fmt::format("{:016x}", x); }

// The numbers of the config that change results while shapes and weights stay the same.
std::string config_digest(const ModelConfig& c) {
  std::string text =
      fmt::format("eps={} act={} {} {} attn_res={}\n", c.rms_norm_eps, static_cast<int>(c.activation),
                  c.situ_beta, c.situ_linear_beta, c.attn_res_block_size);
  text += fmt::format("bound={} full_rank={} gated={}\n", c.kda.gate_lower_bound.value_or(0.0f),
                      c.kda.full_rank_gate, c.mla.output_gate);
  text += fmt::format("k={} norm={} renormalize={} scale={} dense={} freq={}\n", c.moe.experts_per_token,
                      c.moe.latent_norm, c.moe.renormalize, c.moe.routed_scaling_factor,
                      c.moe.first_dense_layers, c.moe.layer_freq);
  for (int i = 0; i < c.num_layers; ++i) text += c.is_kda[i] ? 'K' : c.is_dsa(i) ? 'S' : 'M';
  return hex(fnv1a(text));
}
}  // namespace

NumericsIdentity numerics_identity(const ModelConfig& config, const std::string& weights_digest,
                                   const Precision& precision, const ReductionPlan& plan,
                                   const std::string& architecture) {
  NumericsIdentity id;
  id.fields = {
      {"architecture", architecture},
      {"model", config.architecture},
      {"config", config_digest(config)},
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
