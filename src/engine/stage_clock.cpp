#include "engine/stage_clock.h"

#include <algorithm>
#include <chrono>
#include <set>

namespace perigee {

namespace {

Cost over_sequences(std::span<const SequenceRows> sequences, auto cost_of) {
  Cost total;
  for (const SequenceRows& s : sequences) total = total + cost_of(s);
  return total;
}

Cost experts_cost(const MoeExpertsArgs& a) {
  const int64_t users = int64_t{a.rows} * a.config.experts_per_token;
  Cost cost{.bytes = 0, .flops = 6.0 * static_cast<double>(users) * a.config.intermediate_size * a.in};
  for (int32_t e : std::set<int32_t>(a.experts, a.experts + users))
    cost.bytes += expert_bytes(a.weights.experts[e]);
  return cost;
}

}  // namespace

template <typename Args>
void StageClock::time(const char* name, const Args& args, void (Backend::*stage)(const Args&),
                      const Cost& cost) {
  const auto start = std::chrono::steady_clock::now();
  (backend_.*stage)(args);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  auto at = std::find_if(times_.begin(), times_.end(), [&](const StageTime& t) { return t.name == name; });
  if (at == times_.end()) at = times_.insert(at, {.name = name});
  ++at->calls;
  at->seconds += spent.count();
  at->cost = at->cost + cost;
}

void StageClock::embed(const EmbedArgs& a) { time("embed", a, &Backend::embed, {}); }
void StageClock::attn_res_mix(const AttnResMixArgs& a) {
  time("attn_res_mix", a, &Backend::attn_res_mix, {});
}
void StageClock::lane_reduce(const LaneReduceArgs& a) { time("lane_reduce", a, &Backend::lane_reduce, {}); }
void StageClock::lm_head(const LmHeadArgs& a) {
  time("lm_head", a, &Backend::lm_head, matrix_cost({&a.weight}, static_cast<int>(a.rows.size())));
}
void StageClock::sample(const SampleArgs& a) { time("sample", a, &Backend::sample, {}); }

void StageClock::kda_project(const KdaProjectArgs& a) {
  const KdaWeights& w = a.weights;
  const Cost gate =
      a.config.full_rank_gate ? matrix_cost({&w.gate}, a.rows) : matrix_cost({&w.g_a, &w.g_b}, a.rows);
  time("kda_project", a, &Backend::kda_project,
       matrix_cost({&w.q, &w.k, &w.v, &w.f_a, &w.f_b, &w.beta}, a.rows) + gate);
}
void StageClock::kda_conv_norm_gate(const KdaConvArgs& a) {
  time("kda_conv_norm_gate", a, &Backend::kda_conv_norm_gate, {});
}
void StageClock::kda_chunk(const KdaChunkArgs& a) {
  time("kda_chunk", a, &Backend::kda_chunk,
       over_sequences(a.sequences, [&](const SequenceRows& s) { return kda_state_cost(a.config, s.rows); }));
}
void StageClock::kda_output(const KdaOutputArgs& a) {
  time("kda_output", a, &Backend::kda_output, matrix_cost({&a.weights.o}, a.rows));
}

void StageClock::mla_project(const MlaProjectArgs& a) {
  const MlaWeights& w = a.weights;
  Cost cost = matrix_cost({&w.kv_a}, a.rows);
  if (w.q_a.weight) cost = cost + matrix_cost({&w.q_a}, a.rows);
  if (w.gate.weight) cost = cost + matrix_cost({&w.gate}, a.rows);
  if (w.indexer) cost = cost + matrix_cost({&w.indexer->k, &w.indexer->head_weight}, a.rows);
  time("mla_project", a, &Backend::mla_project, cost);
}
void StageClock::index_front(const IndexFrontArgs& a) {
  time("index_front", a, &Backend::index_front,
       a.weights.indexer ? matrix_cost({&a.weights.indexer->q}, a.rows) : Cost{});
}
void StageClock::mla_query(const MlaQueryArgs& a) {
  time("mla_query", a, &Backend::mla_query, matrix_cost({&a.weights.q, &a.weights.w_uk_t}, a.rows));
}
void StageClock::index_select(const IndexSelectArgs& a) {
  time("index_select", a, &Backend::index_select, over_sequences(a.sequences, [&](const SequenceRows& s) {
         return index_cost(a.config, a.pages[&s - a.sequences.data()].index_format, s.rows, s.start);
       }));
}
void StageClock::sparse_attend(const AttendArgs& a) {
  time("sparse_attend", a, &Backend::sparse_attend, over_sequences(a.sequences, [&](const SequenceRows& s) {
         const LatentFormat format = a.pages[&s - a.sequences.data()].latent_format;
         return selected_latent_cost(a.config, format, a.top_k, s.rows, s.start);
       }));
}
void StageClock::dense_attend(const AttendArgs& a) {
  time("dense_attend", a, &Backend::dense_attend, over_sequences(a.sequences, [&](const SequenceRows& s) {
         return latent_cost(a.config, a.pages[&s - a.sequences.data()].latent_format, s.rows, s.start);
       }));
}
void StageClock::mla_output(const MlaOutputArgs& a) {
  time("mla_output", a, &Backend::mla_output, matrix_cost({&a.weights.w_uv, &a.weights.o}, a.rows));
}

void StageClock::glu_mlp(const GluMlpArgs& a) {
  time("glu_mlp", a, &Backend::glu_mlp,
       matrix_cost({&a.weights.gate, &a.weights.up, &a.weights.down}, a.rows));
}
void StageClock::moe_route(const MoeRouteArgs& a) {
  Cost cost = matrix_cost({&a.weights.router}, a.rows);
  if (a.config.latent_size > 0) cost = cost + matrix_cost({&a.weights.latent_down}, a.rows);
  time("moe_route", a, &Backend::moe_route, cost);
}
void StageClock::moe_experts(const MoeExpertsArgs& a) {
  time("moe_experts", a, &Backend::moe_experts, experts_cost(a));
}
void StageClock::moe_combine(const MoeCombineArgs& a) {
  time("moe_combine", a, &Backend::moe_combine,
       a.config.latent_size > 0 ? matrix_cost({&a.weights.latent_up}, a.rows) : Cost{});
}

}  // namespace perigee
