// The shapes and constants of each kind of block, as stages need them. ModelConfig is made of these.
#pragma once

#include <optional>
#include <vector>

namespace perigee {

enum class Activation { kSilu, kSitu };

struct KdaConfig {
  int num_heads = 0;
  int head_dim = 128;
  int conv_kernel = 4;
  std::optional<float>
      gate_lower_bound;         // set: g = bound·σ(exp(A_log)·u); unset: g = −exp(A_log)·softplus(u)
  bool full_rank_gate = false;  // g_proj, or g_b_proj·g_a_proj (through head_dim)
};

struct MlaConfig {
  int num_heads = 0;
  int q_lora_rank = 0;  // 0: a full q_proj
  int kv_lora_rank = 512;
  int qk_nope_head_dim = 128;
  int qk_rope_head_dim = 64;  // never rotated in this family (NoPE)
  int v_head_dim = 128;
  bool output_gate = false;

  int qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  int latent_dim() const { return kv_lora_rank + qk_rope_head_dim; }
};

struct DsaConfig {
  int num_heads = 0;
  int head_dim = 128;
  int top_k = 0;
  std::vector<int> layers;  // 0-based; each is an MLA layer
};

struct MoeConfig {
  int num_experts = 0;
  int experts_per_token = 0;
  int num_shared_experts = 0;
  int intermediate_size = 0;
  int latent_size = 0;  // 0: experts read the full hidden vector
  bool latent_norm = false;
  bool renormalize = true;
  float routed_scaling_factor = 1.0f;
  int first_dense_layers = 1;
  int layer_freq = 1;

  int shared_intermediate_size() const { return num_shared_experts * intermediate_size; }
  int expert_input_size(int hidden) const { return latent_size ? latent_size : hidden; }
};

}  // namespace perigee
