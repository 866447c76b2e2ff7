// The stages around attention that multiply with weights: lm_head, kda_project, kda_output, mla_project,
// index_front, mla_query, mla_output.
#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/cpu/fast/backend.h"
#include "ops/elementary.h"

namespace perigee::cpu {

namespace {

constexpr int kHead = 128;

bool tiled(std::initializer_list<const Linear*> matrices) {
  return std::all_of(matrices.begin(), matrices.end(),
                     [](const Linear* w) { return tiled_matrix(*w, 1).tiles; });
}

}  // namespace

Product FastBackend::product(const Linear& w, const SpreadRows& x, Sink sink) const {
  const TiledMatrix m = tiled_matrix(w, 1);
  return {.weight = m, .outputs = w.out, .x = x, .sink = std::move(sink)};
}

Product FastBackend::to_bf16(const Linear& w, const SpreadRows& x, bf16* out, int64_t stride) const {
  return product(w, x, [=, this](int r, int first, int count, const float* y, const float*) {
    kernels_.matrix->round(y, count, out + r * stride + first);
  });
}

Product FastBackend::to_fp32(const Linear& w, const SpreadRows& x, float* out, int64_t stride) const {
  return product(w, x, [=](int r, int first, int count, const float* y, const float*) {
    std::memcpy(out + r * stride + first, y, count * sizeof(float));
  });
}

void FastBackend::lane_products(const Linear& w, const bf16* y, int rows, int lanes, float* partial) {
  const TiledMatrix m = tiled_matrix(w, lanes);
  const int columns = m.shape.columns();
  std::vector<Products::Rows> blocks;
  for (int lane = 0; lane < lanes; ++lane) {
    blocks.push_back({rows, columns, [=, at = y + lane * columns](int r) { return at + int64_t{r} * w.in; }});
  }
  const std::vector<SpreadRows> x = products_.spread(blocks);
  std::vector<Product> all;
  for (int lane = 0; lane < lanes; ++lane) {
    float* out = partial + int64_t{lane} * rows * w.out;
    all.push_back(
        {.weight = m,
         .segment = lane,
         .outputs = w.out,
         .x = x[lane],
         .sink = [out, stride = w.out](int r, int first, int count, const float* sums, const float*) {
           std::memcpy(out + int64_t{r} * stride + first, sums, count * sizeof(float));
         }});
  }
  products_.run(all);
}

void FastBackend::lm_head(const LmHeadArgs& a) {
  if (!tiled({&a.weight})) return PlainBackend::lm_head(a);
  Arena::Scope scope(arena_);
  const int rows = static_cast<int>(a.rows.size()), hidden = a.weight.in;
  const Products::Rows wanted{rows, hidden, [&](int r) { return a.x + int64_t{a.rows[r]} * hidden; }};
  run_one(to_fp32(a.weight, products_.spread({&wanted, 1}).front(), a.logits, a.weight.out));
}

void FastBackend::kda_project(const KdaProjectArgs& a) {
  const KdaWeights& w = a.weights;
  const bool full = a.config.full_rank_gate;
  if (!tiled({&w.q, &w.k, &w.v, &w.f_a, &w.f_b, &w.beta}) ||
      !(full ? tiled({&w.gate}) : tiled({&w.g_a, &w.g_b}))) {
    return PlainBackend::kda_project(a);
  }
  Arena::Scope scope(arena_);
  const MatrixKernels& kernels = *kernels_.matrix;
  const int heads = a.config.num_heads, D = heads * kHead;
  const SpreadRows x = products_.spread(a.x, w.q.in, a.rows, w.q.in);
  bf16* f = arena_.take<bf16>(int64_t{a.rows} * w.f_a.out);
  bf16* low = full ? nullptr : arena_.take<bf16>(int64_t{a.rows} * w.g_a.out);
  const Product first_products[] = {
      to_bf16(w.q, x, a.conv_input, 3 * D),
      to_bf16(w.k, x, a.conv_input + D, 3 * D),
      to_bf16(w.v, x, a.conv_input + 2 * D, 3 * D),
      full ? to_bf16(w.gate, x, a.gate, D) : to_bf16(w.g_a, x, low, w.g_a.out),
      to_bf16(w.f_a, x, f, w.f_a.out),
      product(w.beta, x, [&](int r, int first, int count, const float* y, const float*) {
        kernels.sigmoid(y, count, a.beta + int64_t{r} * heads + first);
      })};
  products_.run(first_products);
  std::vector<float> rate(heads);
  {
    const FlushSubnormals flush;
    for (int h = 0; h < heads; ++h) rate[h] = exp(w.a_log[h]);
  }
  std::vector<Product> second;
  second.push_back(product(w.f_b, products_.spread(f, w.f_a.out, a.rows, w.f_a.out),
                           [&](int r, int first, int count, const float* y, const float*) {
                             for (int i = 0; i < count; i += kTileOutputs) {
                               kernels.decay({.y = y + i,
                                              .dt_bias = w.dt_bias + first + i,
                                              .rate = rate[(first + i) / kHead],
                                              .bounded = a.config.gate_lower_bound.has_value(),
                                              .bound = a.config.gate_lower_bound.value_or(0.0f),
                                              .g = a.g + int64_t{r} * D + first + i},
                                             kTileOutputs);
                             }
                           }));
  if (!full) second.push_back(to_bf16(w.g_b, products_.spread(low, w.g_a.out, a.rows, w.g_a.out), a.gate, D));
  products_.run(second);
}

void FastBackend::kda_output(const KdaOutputArgs& a) {
  if (!tiled_matrix(a.weights.o, a.lanes).tiles) return PlainBackend::kda_output(a);
  Arena::Scope scope(arena_);
  const int heads = a.config.num_heads;
  bf16* y = arena_.take<bf16>(int64_t{a.rows} * heads * kHead);
  pool_.run(int64_t{a.rows} * heads, [&](int64_t task) {
    const int64_t at = task * kHead;
    kernels_.matrix->gated_rms(a.o + at, a.weights.o_norm, a.gate + at, a.eps, kHead, y + at);
  });
  lane_products(a.weights.o, y, a.rows, a.lanes, a.partial);
}

void FastBackend::mla_project(const MlaProjectArgs& a) {
  const MlaWeights& w = a.weights;
  std::vector<const Linear*> used = {&w.kv_a};
  if (w.q_a.weight) used.push_back(&w.q_a);
  if (w.gate.weight) used.push_back(&w.gate);
  if (w.indexer) used.insert(used.end(), {&w.indexer->k, &w.indexer->head_weight});
  for (const Linear* m : used) {
    if (!tiled({m})) return PlainBackend::mla_project(a);
  }
  Arena::Scope scope(arena_);
  const SpreadRows x = products_.spread(a.x, w.kv_a.in, a.rows, w.kv_a.in);
  std::vector<Product> all = {to_bf16(w.kv_a, x, a.kv_a, w.kv_a.out)};
  if (w.q_a.weight) all.push_back(to_bf16(w.q_a, x, a.q_a, w.q_a.out));
  if (w.gate.weight) all.push_back(to_bf16(w.gate, x, a.gate, w.gate.out));
  if (w.indexer) {
    all.push_back(to_bf16(w.indexer->k, x, a.index_key, w.indexer->k.out));
    all.push_back(to_fp32(w.indexer->head_weight, x, a.index_weight, w.indexer->head_weight.out));
  }
  products_.run(all);
}

void FastBackend::index_front(const IndexFrontArgs& a) {
  const int q_lora = a.weights.q_a.out;
  if (q_lora % 16 != 0 || (a.weights.indexer && !tiled({&a.weights.indexer->q}))) {
    return PlainBackend::index_front(a);
  }
  Arena::Scope scope(arena_);
  float* wide = arena_.take<float>(int64_t{a.rows} * q_lora);
  pool_.run(a.rows, [&](int64_t r) {
    float* x = wide + r * q_lora;
    kernels_.matrix->widen(a.q_a + r * q_lora, q_lora, x);
    kernels_.matrix->rms(x, a.weights.q_a_norm, a.eps, q_lora, a.cq + r * q_lora);
  });
  if (!a.weights.indexer) return;
  const Linear& w = a.weights.indexer->q;
  float* q = arena_.take<float>(int64_t{a.rows} * w.out);
  run_one(to_fp32(w, products_.spread(a.cq, q_lora, a.rows, q_lora), q, w.out));
  quantise_index(a, q);
}

void FastBackend::mla_query(const MlaQueryArgs& a) {
  const MlaWeights& w = a.weights;
  if (!tiled({&w.q, &w.w_uk_t})) return PlainBackend::mla_query(a);
  Arena::Scope scope(arena_);
  const MlaConfig& c = a.config;
  const int heads = c.num_heads, nope = c.qk_nope_head_dim, rope = c.qk_rope_head_dim, rank = c.kv_lora_rank;
  const int64_t qk = c.qk_head_dim(), latent = c.latent_dim();
  bf16* q = arena_.take<bf16>(a.rows * heads * qk);
  run_one(to_bf16(w.q, products_.spread(a.q_input, w.q.in, a.rows, w.q.in), q, heads * qk));
  std::vector<Products::Rows> blocks;
  for (int h = 0; h < heads; ++h) {
    blocks.push_back({a.rows, nope, [=](int r) { return q + (int64_t{r} * heads + h) * qk; }});
  }
  const std::vector<SpreadRows> x = products_.spread(blocks);
  std::vector<Product> absorb;
  for (int h = 0; h < heads; ++h) {
    bf16* out = a.query + h * latent;
    for (int r = 0; r < a.rows; ++r) {
      std::memcpy(out + r * heads * latent + rank, q + (int64_t{r} * heads + h) * qk + nope,
                  rope * sizeof(bf16));
    }
    Product p = to_bf16(w.w_uk_t, x[h], out, heads * latent);
    p.first_output = h * rank;
    p.outputs = rank;
    absorb.push_back(std::move(p));
  }
  products_.run(absorb);
  write_latents(a);
}

void FastBackend::mla_output(const MlaOutputArgs& a) {
  const Linear& w = a.weights.w_uv;
  if (!tiled({&w}) || !tiled_matrix(a.weights.o, a.lanes).tiles) return PlainBackend::mla_output(a);
  Arena::Scope scope(arena_);
  const int heads = a.config.num_heads, v = a.config.v_head_dim, rank = a.config.kv_lora_rank;
  const int64_t D = int64_t{heads} * v;
  bf16* o = arena_.take<bf16>(a.rows * D);
  std::vector<Products::Rows> blocks;
  for (int h = 0; h < heads; ++h) {
    blocks.push_back(
        {a.rows, rank, [&a, heads, h, rank](int r) { return a.z + (int64_t{r} * heads + h) * rank; }});
  }
  const std::vector<SpreadRows> z = products_.spread(blocks);
  std::vector<Product> values;
  for (int h = 0; h < heads; ++h) {
    Product p = product(w, z[h], [&, h](int r, int first, int count, const float* y, const float*) {
      const int64_t at = r * D + h * v + first;
      if (a.gate) {
        kernels_.matrix->gate(y, a.gate + at, count, o + at);
      } else {
        kernels_.matrix->round(y, count, o + at);
      }
    });
    p.first_output = h * v;
    p.outputs = v;
    values.push_back(std::move(p));
  }
  products_.run(values);
  lane_products(a.weights.o, o, a.rows, a.lanes, a.partial);
}

}  // namespace perigee::cpu
