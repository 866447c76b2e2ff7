#include "model/roster.h"

#include <boost/json/array.hpp>

namespace perigee {

namespace {

class Roster {
 public:
  Roster(const ModelConfig& config, const std::function<void(const TensorSpec&)>& visit)
      : c_(config), visit_(visit) {}

  void walk() {
    const std::string model = c_.tensor_prefix + "model.";
    const int64_t h = c_.hidden_size;
    matrix(model + "embed_tokens.weight", TensorKind::kEmbedding, {c_.vocab_size, h});
    for (int layer = 0; layer < c_.num_layers; ++layer)
      walk_layer(layer, model + fmt::format("layers.{}.", layer));
    small(model + "norm.weight", TensorKind::kNorm, {h});
    if (c_.has_attn_res()) attn_res(model + "output_attn_res");
    matrix(c_.tensor_prefix + "lm_head.weight", TensorKind::kLmHead, {c_.vocab_size, h},
           c_.tie_word_embeddings);
    if (c_.vision) walk_vision();
  }

 private:
  void emit(TensorSpec spec) {
    if (spec.form != TensorForm::kScale && spec.parameters == 0)
      spec.parameters = element_count(spec.shape) * (spec.form == TensorForm::kPacked ? 2 : 1);
    visit_(spec);
  }
  void matrix(std::string name, TensorKind kind, Shape shape, bool optional = false) {
    emit({std::move(name), kind, TensorForm::kMatrix, DType::kBF16, std::move(shape), 0, optional});
  }
  void small(std::string name, TensorKind kind, Shape shape, DType dtype = DType::kBF16) {
    emit({std::move(name), kind, TensorForm::kSmall, dtype, std::move(shape), 0, false});
  }
  void vision(std::string name, Shape shape) {
    emit({std::move(name), TensorKind::kVision, TensorForm::kVision, DType::kBF16, std::move(shape), 0,
          false});
  }
  void attn_res(const std::string& prefix) {
    small(prefix + "_norm.weight", TensorKind::kAttnRes, {c_.hidden_size});
    small(prefix + "_proj.weight", TensorKind::kAttnRes, {1, c_.hidden_size});
  }
  void glu(const std::string& prefix, TensorKind kind, int64_t inter) {
    matrix(prefix + "gate_proj.weight", kind, {inter, c_.hidden_size});
    matrix(prefix + "up_proj.weight", kind, {inter, c_.hidden_size});
    matrix(prefix + "down_proj.weight", kind, {c_.hidden_size, inter});
  }

  void walk_layer(int layer, const std::string& prefix) {
    const int64_t h = c_.hidden_size;
    small(prefix + "input_layernorm.weight", TensorKind::kNorm, {h});
    small(prefix + "post_attention_layernorm.weight", TensorKind::kNorm, {h});
    if (c_.has_attn_res()) {
      attn_res(prefix + "self_attention_res");
      attn_res(prefix + "mlp_res");
    }
    if (c_.is_kda[layer])
      walk_kda(prefix + "self_attn.");
    else
      walk_mla(prefix + "self_attn.", c_.is_dsa(layer));
    if (c_.is_moe(layer))
      walk_moe(prefix + "block_sparse_moe.");
    else
      glu(prefix + "mlp.", TensorKind::kDenseMlp, c_.intermediate_size);
  }

  void walk_kda(const std::string& p) {
    const int64_t h = c_.hidden_size, dim = c_.kda.head_dim, heads = c_.kda.num_heads, d = heads * dim;
    const bool nested = !c_.tensor_prefix.empty();
    for (const char* name : {"q_proj", "k_proj", "v_proj"})
      matrix(p + name + ".weight", TensorKind::kKda, {d, h});
    for (const char* name : {"q_conv1d", "k_conv1d", "v_conv1d"})
      small(p + name + ".weight", TensorKind::kKda, {d, 1, c_.kda.conv_kernel},
            nested ? DType::kF32 : DType::kBF16);
    matrix(p + "f_a_proj.weight", TensorKind::kKda, {dim, h});
    matrix(p + "f_b_proj.weight", TensorKind::kKda, {d, dim});
    matrix(p + "b_proj.weight", TensorKind::kKda, {heads, h});
    // Releases with a text_config pad the heads to a multiple of 128; Kimi-Linear has one entry a head on
    // four axes.
    const Shape a_log = nested ? Shape{(heads + 127) / 128 * 128} : Shape{1, 1, heads, 1};
    emit({p + "A_log", TensorKind::kKda, TensorForm::kALog, DType::kF32, a_log, heads, false});
    small(p + "dt_bias", TensorKind::kKda, {d}, DType::kF32);
    if (c_.kda.full_rank_gate) {
      matrix(p + "g_proj.weight", TensorKind::kKda, {d, h});
    } else {
      matrix(p + "g_a_proj.weight", TensorKind::kKda, {dim, h});
      matrix(p + "g_b_proj.weight", TensorKind::kKda, {d, dim});
    }
    small(p + "o_norm.weight", TensorKind::kKda, {dim}, nested ? DType::kF32 : DType::kBF16);
    matrix(p + "o_proj.weight", TensorKind::kKda, {h, d});
  }

  void walk_mla(const std::string& p, bool dsa) {
    const MlaConfig& m = c_.mla;
    const int64_t h = c_.hidden_size, heads = m.num_heads;
    if (m.q_lora_rank > 0) {
      matrix(p + "q_a_proj.weight", TensorKind::kMla, {m.q_lora_rank, h});
      small(p + "q_a_layernorm.weight", TensorKind::kMla, {m.q_lora_rank});
      matrix(p + "q_b_proj.weight", TensorKind::kMla, {heads * m.qk_head_dim(), m.q_lora_rank});
    } else {
      matrix(p + "q_proj.weight", TensorKind::kMla, {heads * m.qk_head_dim(), h});
    }
    matrix(p + "kv_a_proj_with_mqa.weight", TensorKind::kMla, {m.latent_dim(), h});
    small(p + "kv_a_layernorm.weight", TensorKind::kMla, {m.kv_lora_rank});
    matrix(p + "kv_b_proj.weight", TensorKind::kMla,
           {heads * (m.qk_nope_head_dim + m.v_head_dim), m.kv_lora_rank});
    if (m.output_gate) matrix(p + "g_proj.weight", TensorKind::kMla, {heads * m.v_head_dim, h});
    matrix(p + "o_proj.weight", TensorKind::kMla, {h, heads * m.v_head_dim});
    if (!dsa) return;
    const DsaConfig& d = *c_.dsa;
    matrix(p + "indexer.wq_b.weight", TensorKind::kIndexer,
           {int64_t{d.num_heads} * d.head_dim, m.q_lora_rank});
    matrix(p + "indexer.wk.weight", TensorKind::kIndexer, {d.head_dim, h});
    matrix(p + "indexer.weights_proj.weight", TensorKind::kIndexer, {d.num_heads, h});
    small(p + "indexer.k_norm.weight", TensorKind::kIndexer, {d.head_dim});
    small(p + "indexer.k_norm.bias", TensorKind::kIndexer, {d.head_dim});
  }

  void walk_moe(const std::string& p) {
    const MoeConfig& m = c_.moe;
    const int64_t h = c_.hidden_size, in = m.expert_input_size(c_.hidden_size), inter = m.intermediate_size;
    matrix(p + "gate.weight", TensorKind::kRouter, {m.num_experts, h});
    small(p + "gate.e_score_correction_bias", TensorKind::kRouter, {m.num_experts}, DType::kF32);
    if (m.latent_size > 0) {
      matrix(p + "routed_expert_down_proj.weight", TensorKind::kLatentMoe, {m.latent_size, h});
      if (m.latent_norm) small(p + "routed_expert_norm.weight", TensorKind::kLatentMoe, {m.latent_size});
      matrix(p + "routed_expert_up_proj.weight", TensorKind::kLatentMoe, {h, m.latent_size});
    }
    if (m.num_shared_experts > 0)
      glu(p + "shared_experts.", TensorKind::kSharedExperts, m.shared_intermediate_size());
    for (int e = 0; e < m.num_experts; ++e) {
      const std::string expert = p + fmt::format("experts.{}.", e);
      expert_matrix(expert + "w1.weight", inter, in);
      expert_matrix(expert + "w2.weight", in, inter);
      expert_matrix(expert + "w3.weight", inter, in);
    }
  }

  void expert_matrix(const std::string& name, int64_t out, int64_t in) {
    if (!c_.mxfp4_experts) return matrix(name, TensorKind::kRoutedExperts, {out, in});
    emit({name + "_packed",
          TensorKind::kRoutedExperts,
          TensorForm::kPacked,
          DType::kU8,
          {out, in / 2},
          0,
          false});
    emit({name + "_scale",
          TensorKind::kRoutedExperts,
          TensorForm::kScale,
          DType::kU8,
          {out, in / 32},
          0,
          false});
  }

  void walk_vision() {
    const auto value = [&](const char* name, int64_t fallback) {
      const boost::json::value* v = c_.vision->if_contains(name);
      return v && v->is_int64() ? v->get_int64() : fallback;
    };
    const int64_t width = value("vt_hidden_size", 1024), inter = value("vt_intermediate_size", 4096);
    const int64_t qkv = value("qkv_hidden_size", 1536), patch = value("patch_size", 14);
    int64_t merged = value("mm_hidden_size", width);
    if (const auto* kernel = c_.vision->if_contains("merge_kernel_size"); kernel && kernel->is_array()) {
      for (const auto& k : kernel->get_array()) merged *= k.is_int64() ? k.get_int64() : 1;
    } else {
      merged *= 4;
    }
    const std::string tower = "vision_tower.";
    vision(tower + "patch_embed.proj.weight", {width, 3, patch, patch});
    vision(tower + "patch_embed.pos_emb.weight",
           {value("init_pos_emb_height", 64), value("init_pos_emb_width", 64), width});
    for (int64_t b = 0; b < value("vt_num_hidden_layers", 27); ++b) {
      const std::string p = tower + fmt::format("encoder.blocks.{}.", b);
      vision(p + "norm0.weight", {width});
      vision(p + "norm1.weight", {width});
      vision(p + "wqkv.weight", {3 * qkv, width});
      vision(p + "wo.weight", {width, qkv});
      vision(p + "mlp.fc0.weight", {inter, width});
      vision(p + "mlp.fc1.weight", {width, inter});
    }
    vision(tower + "encoder.final_layernorm.weight", {width});
    vision("mm_projector.proj.0.weight", {merged, merged});
    vision("mm_projector.proj.2.weight", {c_.hidden_size, merged});
    vision("mm_projector.post_norm.weight", {c_.hidden_size});
  }

  const ModelConfig& c_;
  const std::function<void(const TensorSpec&)>& visit_;
};

}  // namespace

std::string_view kind_name(TensorKind kind) {
  switch (kind) {
    case TensorKind::kEmbedding:
      return "embedding";
    case TensorKind::kLmHead:
      return "lm_head";
    case TensorKind::kNorm:
      return "norms";
    case TensorKind::kAttnRes:
      return "attn_res";
    case TensorKind::kKda:
      return "kda";
    case TensorKind::kMla:
      return "mla";
    case TensorKind::kIndexer:
      return "indexer";
    case TensorKind::kDenseMlp:
      return "dense_mlp";
    case TensorKind::kRouter:
      return "router";
    case TensorKind::kLatentMoe:
      return "latent_moe";
    case TensorKind::kSharedExperts:
      return "shared_experts";
    case TensorKind::kRoutedExperts:
      return "routed_experts";
    case TensorKind::kVision:
      return "vision";
  }
  return "?";
}

void for_each_tensor(const ModelConfig& config, const std::function<void(const TensorSpec&)>& visit) {
  Roster(config, visit).walk();
}

std::vector<TensorSpec> tensor_roster(const ModelConfig& config) {
  std::vector<TensorSpec> out;
  for_each_tensor(config, [&](const TensorSpec& t) { out.push_back(t); });
  return out;
}

std::string canonical_tensor_name(const std::string& name) {
  for (const char* leaf : {"proj", "norm"}) {
    const std::string ending = std::string("_res.") + leaf + "_weight";
    if (name.ends_with(ending))
      return name.substr(0, name.size() - ending.size()) + "_res_" + leaf + ".weight";
  }
  return name;
}

}  // namespace perigee
