// The walk over the matrices of Weights.
#include "model/weights.h"

namespace perigee {

namespace {

using Visit = std::function<void(AnyMatrix, ColumnLanes)>;

void visit_linear(Linear& w, ColumnLanes lanes, const Visit& visit) {
  if (w.weight) visit(&w, lanes);
}

void visit_expert(ExpertLinear& w, ColumnLanes lanes, const Visit& visit) {
  std::visit([&](auto& matrix) { visit(&matrix, lanes); }, w);
}

void visit_glu(GluWeights& w, const Visit& visit) {
  visit_linear(w.gate, ColumnLanes::kNone, visit);
  visit_linear(w.up, ColumnLanes::kNone, visit);
  visit_linear(w.down, ColumnLanes::kLanes, visit);
}

void visit_kda(KdaWeights& w, const Visit& visit) {
  for (Linear* m : {&w.q, &w.k, &w.v, &w.f_a, &w.f_b, &w.beta, &w.gate, &w.g_a, &w.g_b}) {
    visit_linear(*m, ColumnLanes::kNone, visit);
  }
  visit_linear(w.o, ColumnLanes::kLanes, visit);
}

void visit_mla(MlaWeights& w, const Visit& visit) {
  for (Linear* m : {&w.q_a, &w.q, &w.kv_a, &w.w_uk_t, &w.w_uv, &w.gate}) {
    visit_linear(*m, ColumnLanes::kNone, visit);
  }
  visit_linear(w.o, ColumnLanes::kLanes, visit);
  if (!w.indexer) return;
  for (Linear* m : {&w.indexer->q, &w.indexer->k, &w.indexer->head_weight}) {
    visit_linear(*m, ColumnLanes::kNone, visit);
  }
}

void visit_moe(MoeWeights& w, const Visit& visit) {
  for (Linear* m : {&w.router, &w.latent_down, &w.latent_up}) visit_linear(*m, ColumnLanes::kNone, visit);
  for (MoeWeights::Expert& e : w.experts) {
    visit_expert(e.gate, ColumnLanes::kNone, visit);
    visit_expert(e.up, ColumnLanes::kNone, visit);
    visit_expert(e.down, ColumnLanes::kExpertLanes, visit);
  }
  if (w.shared) visit_glu(*w.shared, visit);
}

}  // namespace

void for_each_matrix(Weights& weights, const Visit& visit) {
  visit_linear(weights.lm_head, ColumnLanes::kNone, visit);
  for (LayerWeights& layer : weights.layers) {
    if (auto* kda = std::get_if<KdaWeights>(&layer.attention))
      visit_kda(*kda, visit);
    else
      visit_mla(std::get<MlaWeights>(layer.attention), visit);
    if (auto* glu = std::get_if<GluWeights>(&layer.mlp))
      visit_glu(*glu, visit);
    else
      visit_moe(std::get<MoeWeights>(layer.mlp), visit);
  }
}

}  // namespace perigee
