// The stages of the MLP half of a layer: glu_mlp, moe_route, moe_experts, moe_combine.
#include <algorithm>

#include "ops/cpu/fast/backend.h"

namespace perigee::cpu {

void FastBackend::glu_mlp(const GluMlpArgs& a) {
  const GluWeights& w = a.weights;
  const TiledMatrix gate = tiled_matrix(w.gate, 1), up = tiled_matrix(w.up, 1);
  if (!gate.tiles || !up.tiles || !tiled_matrix(w.down, a.lanes).tiles) return PlainBackend::glu_mlp(a);
  Arena::Scope scope(arena_);
  const int inter = w.gate.out;
  bf16* act = arena_.take<bf16>(int64_t{a.rows} * inter);
  Product p = product(w.gate, products_.spread(a.x, w.gate.in, a.rows, w.gate.in),
                      [&](int r, int first, int count, const float* y, const float* paired) {
                        kernels_.matrix->activate({.gate = y,
                                                   .up = paired,
                                                   .situ = a.activation.kind == Activation::kSitu,
                                                   .beta = a.activation.beta,
                                                   .linear_beta = a.activation.linear_beta,
                                                   .out = act + int64_t{r} * inter + first},
                                                  count);
                      });
  p.paired = up;
  run_one(p);
  lane_products(w.down, act, a.rows, a.lanes, a.partial);
}

void FastBackend::moe_route(const MoeRouteArgs& a) {
  const MoeWeights& w = a.weights;
  const bool latent = a.config.latent_size > 0;
  if (!tiled_matrix(w.router, 1).tiles || (latent && !tiled_matrix(w.latent_down, 1).tiles)) {
    return PlainBackend::moe_route(a);
  }
  Arena::Scope scope(arena_);
  const int experts = a.config.num_experts;
  float* score = arena_.take<float>(int64_t{a.rows} * experts);
  const SpreadRows x = products_.spread(a.x, w.router.in, a.rows, w.router.in);
  std::vector<Product> all = {
      product(w.router, x, [&](int r, int first, int count, const float* y, const float*) {
        kernels_.matrix->sigmoid(y, count, score + int64_t{r} * experts + first);
      })};
  if (latent) all.push_back(to_bf16(w.latent_down, x, a.z, w.latent_down.out));
  products_.run(all);
  choose_experts(a, score);
}

void FastBackend::moe_experts(const MoeExpertsArgs& a) {
  const int k = a.config.experts_per_token, experts = a.config.num_experts,
            inter = a.config.intermediate_size;
  const int lanes = a.lanes_expert ? 1 : a.lanes, block = inter / lanes;
  const MatrixKernels& kernels = *kernels_.matrix;
  const auto tiled = [](const ExpertLinear& w, int segments) {
    return std::visit([&](const auto& m) { return tiled_matrix(m, segments); }, w);
  };
  // Rows by expert, so that each expert is read once: users row·k + slot of expert e are
  // user[first[e]] … user[first[e + 1] − 1], in ascending order.
  const int users = a.rows * k;
  std::vector<int> first(experts + 1), user(users);
  for (int i = 0; i < users; ++i) ++first[a.experts[i] + 1];
  for (int e = 0; e < experts; ++e) first[e + 1] += first[e];
  std::vector<int> next(first.begin(), first.end() - 1);
  for (int i = 0; i < users; ++i) user[next[a.experts[i]]++] = i;
  std::vector<int> active;
  for (int e = 0; e < experts; ++e) {
    if (first[e] == first[e + 1]) continue;
    const MoeWeights::Expert& w = a.weights.experts[e];
    if (!tiled(w.gate, 1).tiles || !tiled(w.up, 1).tiles || !tiled(w.down, lanes).tiles) {
      return PlainBackend::moe_experts(a);
    }
    active.push_back(e);
  }

  Arena::Scope scope(arena_);
  bf16* act = arena_.take<bf16>(int64_t{users} * inter);
  bf16* down = arena_.take<bf16>(int64_t{users} * lanes * a.in);  // [row·k + slot, lane, in]
  std::vector<Products::Rows> gathered;
  for (int e : active) {
    gathered.push_back({first[e + 1] - first[e], a.in,
                        [&, at = user.data() + first[e]](int r) { return a.z + int64_t{at[r] / k} * a.in; },
                        tiled(a.weights.experts[e].gate, 1).shape.mxfp4});
  }
  std::vector<SpreadRows> x = products_.spread(gathered);
  std::vector<Product> all;
  for (size_t i = 0; i < active.size(); ++i) {
    const MoeWeights::Expert& w = a.weights.experts[active[i]];
    all.push_back({.weight = tiled(w.gate, 1),
                   .paired = tiled(w.up, 1),
                   .outputs = inter,
                   .x = x[i],
                   .sink = [&, at = user.data() + first[active[i]]](int r, int o, int count, const float* y,
                                                                    const float* paired) {
                     kernels.activate({.gate = y,
                                       .up = paired,
                                       .situ = a.activation.kind == Activation::kSitu,
                                       .beta = a.activation.beta,
                                       .linear_beta = a.activation.linear_beta,
                                       .out = act + int64_t{at[r]} * inter + o},
                                      count);
                   }});
  }
  products_.run(all);

  gathered.clear(), all.clear();
  for (int e : active) {
    for (int lane = 0; lane < lanes; ++lane) {
      gathered.push_back(
          {first[e + 1] - first[e], block,
           [=, at = user.data() + first[e]](int r) { return act + int64_t{at[r]} * inter + lane * block; },
           tiled(a.weights.experts[e].down, 1).shape.mxfp4});
    }
  }
  x = products_.spread(gathered);
  for (size_t i = 0; i < x.size(); ++i) {
    const int e = active[i / lanes], lane = static_cast<int>(i % lanes);
    all.push_back({.weight = tiled(a.weights.experts[e].down, lanes),
                   .segment = lane,
                   .outputs = a.in,
                   .x = x[i],
                   .sink = [&, lane, at = user.data() + first[e]](int r, int o, int count, const float* y,
                                                                  const float*) {
                     kernels.round(y, count, down + (int64_t{at[r]} * lanes + lane) * a.in + o);
                   }});
  }
  products_.run(all);

  const int experts_per_lane = a.lanes_expert ? experts / a.lanes : experts;
  pool_.run(int64_t{a.lanes} * a.rows, [&](int64_t task) {
    const int lane = static_cast<int>(task / a.rows), r = static_cast<int>(task % a.rows);
    float* y = a.partial + task * a.in;
    std::fill_n(y, a.in, 0.0f);
    for (int i = r * k; i < (r + 1) * k; ++i) {  // ascending expert id
      if (a.lanes_expert && a.experts[i] / experts_per_lane != lane) continue;
      const bf16* partial = down + (int64_t{i} * lanes + (a.lanes_expert ? 0 : lane)) * a.in;
      kernels.add_scaled(partial, a.expert_weight[i], a.in, y);
    }
  });
}

void FastBackend::moe_combine(const MoeCombineArgs& a) {
  const bool latent = a.config.latent_size > 0;
  const int in = a.config.expert_input_size(a.hidden);
  if (latent && (!tiled_matrix(a.weights.latent_up, 1).tiles || (a.config.latent_norm && in % 16 != 0))) {
    return PlainBackend::moe_combine(a);
  }
  Arena::Scope scope(arena_);
  const MatrixKernels& kernels = *kernels_.matrix;
  const int rows = a.rows, hidden = a.hidden;
  float* routed = arena_.take<float>(int64_t{rows} * in);
  bf16* y = latent ? arena_.take<bf16>(int64_t{rows} * in) : nullptr;
  float* up = latent ? arena_.take<float>(int64_t{rows} * hidden) : routed;
  pool_.run(rows, [&](int64_t r) {
    float* sum = routed + r * in;
    kernels.tree({.first = a.routed + r * in, .stride = int64_t{rows} * in, .lanes = a.lanes}, in, sum);
    if (!latent) return;
    if (a.config.latent_norm) {
      kernels.rms(sum, a.weights.latent_norm, a.eps, in, y + r * in);
    } else {
      kernels.round(sum, in, y + r * in);
    }
  });
  if (latent) run_one(to_fp32(a.weights.latent_up, products_.spread(y, in, rows, in), up, hidden));
  float* shared = a.shared ? arena_.take<float>(int64_t{rows} * hidden) : nullptr;
  pool_.run(rows, [&](int64_t r) {
    const int64_t at = r * hidden;
    if (shared)
      kernels.tree({.first = a.shared + at, .stride = int64_t{rows} * hidden, .lanes = a.lanes}, hidden,
                   shared + at);
    kernels.add_residual(up + at, shared ? shared + at : nullptr, hidden, a.stream + at);
  });
}

}  // namespace perigee::cpu
