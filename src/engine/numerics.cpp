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
}  // namespace

NumericsIdentity numerics_identity(const ModelConfig& config, const std::string& weights_digest,
                                   const Precision& precision, const ReductionPlan& plan,
                                   const std::string& architecture) {
  NumericsIdentity id;
  id.fields = {
      {"architecture", architecture},
      {"model", config.architecture},
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
  id.digest = fmt::format("{:016x}", fnv1a(text));
  return id;
}

}  // namespace perigee
