#include <fmt/format.h>

#include "compare_weights.h"

#include <cstring>

namespace perigee {

namespace {

class Comparison {
 public:
  std::string difference;

  template <typename T>
  void array(const char* what, const T* a, const T* b, int64_t count) {
    if (!difference.empty()) return;
    if ((a == nullptr) != (b == nullptr) ||
        (a && std::memcmp(a, b, static_cast<size_t>(count) * sizeof(T)) != 0))
      difference = where + what;
  }
  void linear(const char* what, const Linear& a, const Linear& b) {
    if (difference.empty() && (a.out != b.out || a.in != b.in)) difference = where + what + " (shape)";
    array(what, a.weight, b.weight, int64_t{a.out} * a.in);
  }
  void expert(const char* what, const ExpertLinear& a, const ExpertLinear& b) {
    if (a.index() != b.index()) difference = where + what + " (format)";
    if (!difference.empty()) return;
    if (const auto* x = std::get_if<Linear>(&a)) return linear(what, *x, std::get<Linear>(b));
    const auto &x = std::get<Mxfp4Linear>(a), &y = std::get<Mxfp4Linear>(b);
    if (x.out != y.out || x.in != y.in) difference = where + what + " (shape)";
    array(what, x.packed, y.packed, int64_t{x.out} * x.in / 2);
    array(what, x.scale, y.scale, int64_t{x.out} * x.in / 32);
  }
  void glu(const GluWeights& a, const GluWeights& b) {
    linear("gate", a.gate, b.gate);
    linear("up", a.up, b.up);
    linear("down", a.down, b.down);
  }
  void kda(const KdaWeights& a, const KdaWeights& b, const ModelConfig& c) {
    const int d = c.kda.num_heads * c.kda.head_dim;
    linear("q", a.q, b.q);
    linear("k", a.k, b.k);
    linear("v", a.v, b.v);
    array("conv_q", a.conv_q, b.conv_q, d * 4);
    array("conv_k", a.conv_k, b.conv_k, d * 4);
    array("conv_v", a.conv_v, b.conv_v, d * 4);
    linear("f_a", a.f_a, b.f_a);
    linear("f_b", a.f_b, b.f_b);
    linear("beta", a.beta, b.beta);
    linear("gate", a.gate, b.gate);
    linear("g_a", a.g_a, b.g_a);
    linear("g_b", a.g_b, b.g_b);
    array("a_log", a.a_log, b.a_log, c.kda.num_heads);
    array("dt_bias", a.dt_bias, b.dt_bias, d);
    array("o_norm", a.o_norm, b.o_norm, c.kda.head_dim);
    linear("o", a.o, b.o);
  }
  void mla(const MlaWeights& a, const MlaWeights& b, const ModelConfig& c) {
    const MlaConfig& m = c.mla;
    linear("q_a", a.q_a, b.q_a);
    array("q_a_norm", a.q_a_norm, b.q_a_norm, m.q_lora_rank);
    linear("q", a.q, b.q);
    linear("kv_a", a.kv_a, b.kv_a);
    array("kv_a_norm", a.kv_a_norm, b.kv_a_norm, m.kv_lora_rank);
    array("w_uk_t", a.w_uk_t.weight, b.w_uk_t.weight,
          int64_t{m.num_heads} * m.kv_lora_rank * m.qk_nope_head_dim);
    array("w_uv", a.w_uv.weight, b.w_uv.weight, int64_t{m.num_heads} * m.kv_lora_rank * m.v_head_dim);
    linear("gate", a.gate, b.gate);
    linear("o", a.o, b.o);
    if (a.indexer.has_value() != b.indexer.has_value()) difference = where + "indexer";
    if (!difference.empty() || !a.indexer) return;
    linear("indexer.q", a.indexer->q, b.indexer->q);
    linear("indexer.k", a.indexer->k, b.indexer->k);
    linear("indexer.head_weight", a.indexer->head_weight, b.indexer->head_weight);
    array("indexer.k_norm", a.indexer->k_norm, b.indexer->k_norm, c.dsa->head_dim);
    array("indexer.k_norm_bias", a.indexer->k_norm_bias, b.indexer->k_norm_bias, c.dsa->head_dim);
  }
  void moe(const MoeWeights& a, const MoeWeights& b, const ModelConfig& c) {
    linear("router", a.router, b.router);
    array("router_bias", a.router_bias, b.router_bias, c.moe.num_experts);
    linear("latent_down", a.latent_down, b.latent_down);
    linear("latent_up", a.latent_up, b.latent_up);
    array("latent_norm", a.latent_norm, b.latent_norm, c.moe.latent_size);
    if (a.experts.size() != b.experts.size() || a.shared.has_value() != b.shared.has_value())
      difference = where + "experts";
    if (!difference.empty()) return;
    for (size_t e = 0; e < a.experts.size(); ++e) {
      expert("expert gate", a.experts[e].gate, b.experts[e].gate);
      expert("expert up", a.experts[e].up, b.experts[e].up);
      expert("expert down", a.experts[e].down, b.experts[e].down);
    }
    if (a.shared) glu(*a.shared, *b.shared);
  }
  std::string where;
};

}  // namespace

std::string first_difference(const Weights& a, const Weights& b, const ModelConfig& c) {
  Comparison x;
  x.array("embedding", a.embedding, b.embedding, int64_t{c.vocab_size} * c.hidden_size);
  x.array("final_norm", a.final_norm, b.final_norm, c.hidden_size);
  x.array("output_res", a.output_res.score, b.output_res.score, c.hidden_size);
  x.linear("lm_head", a.lm_head, b.lm_head);
  if (a.layers.size() != b.layers.size()) return "layer count";
  for (size_t i = 0; i < a.layers.size() && x.difference.empty(); ++i) {
    const LayerWeights &p = a.layers[i], &q = b.layers[i];
    x.where = fmt::format("layer {} ", i);
    x.array("input_norm", p.input_norm, q.input_norm, c.hidden_size);
    x.array("post_norm", p.post_norm, q.post_norm, c.hidden_size);
    x.array("attn_res", p.attn_res.score, q.attn_res.score, c.hidden_size);
    x.array("mlp_res", p.mlp_res.score, q.mlp_res.score, c.hidden_size);
    if (p.attention.index() != q.attention.index() || p.mlp.index() != q.mlp.index())
      return x.where + "block kind";
    if (const auto* k = std::get_if<KdaWeights>(&p.attention))
      x.kda(*k, std::get<KdaWeights>(q.attention), c);
    else
      x.mla(std::get<MlaWeights>(p.attention), std::get<MlaWeights>(q.attention), c);
    if (const auto* g = std::get_if<GluWeights>(&p.mlp))
      x.glu(*g, std::get<GluWeights>(q.mlp));
    else
      x.moe(std::get<MoeWeights>(p.mlp), std::get<MoeWeights>(q.mlp), c);
  }
  return x.difference;
}

}  // namespace perigee
