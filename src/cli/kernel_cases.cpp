#include "cli/kernel_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/philox.h"
#include "cli/dummy_context.h"
#include "ops/cpu/backend.h"

namespace perigee::cli {

namespace {

// A product of every head with its own [out, in].
Cost head_matrices(int heads, int out, int in, int rows) {
  const Linear all{nullptr, heads * out, in};
  return matrix_cost({&all}, rows);
}

}  // namespace

struct KernelCases::Context {
  SequenceCache cache;
  std::vector<SequenceRows> sequences;
  std::vector<PageTable> pages;
  std::vector<KdaSlot> slots;
  std::vector<const bf16*> banks;
};

bf16* KernelCases::values(int64_t count, float scale) {
  bf16* out = room<bf16>(count);
  const float* x = floats(count, -scale, scale);
  std::transform(x, x + count, out, float_to_bf16);
  return out;
}

float* KernelCases::floats(int64_t count, float low, float high) {
  float* out = room<float>(count);
  ++seed_;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t word = random_words(seed_, 0, static_cast<uint64_t>(i / 4), 0)[i % 4];
    out[i] = low + (high - low) * uniform_open(word);
  }
  return out;
}

KernelCases::Context& KernelCases::context(int rows, int64_t depth) {
  contexts_.push_back(std::make_unique<Context>(Context{.cache = SequenceCache(shape_)}));
  Context& c = *contexts_.back();
  // The latents and index keys of the new rows themselves are there too, as their stages would have left
  // them.
  fill_dummy_context(c.cache, shape_, (depth + rows + kChunk - 1) / kChunk * kChunk, contexts_.size(), pool_);
  c.sequences = {{.first_row = 0, .rows = rows, .start = depth, .accepted = depth + rows}};
  if (!shape_.attention_has_index.empty()) c.pages = {c.cache.pages(0)};
  if (shape_.kda_layers) {
    c.slots = {c.cache.slot(0)};
    *c.slots[0].base = depth;
  }
  return c;
}

void KernelCases::add(std::string stage, std::string sizes, Cost cost, std::function<void(Backend&)> run,
                      std::function<void()> rewind) {
  cases_.push_back({stage + " " + sizes, cost, std::move(run), std::move(rewind)});
}

void KernelCases::add_whole_model(int rows) {
  const int hidden = config_.hidden_size;
  const int64_t n = int64_t{rows} * hidden;
  const std::string sizes = fmt::format("rows={}", rows);
  if (config_.has_attn_res()) {
    constexpr int kBanks = 2;
    Context& c = *contexts_.emplace_back(std::make_unique<Context>(Context{.cache = SequenceCache(shape_)}));
    for (int b = 0; b < kBanks; ++b) c.banks.push_back(values(n, 1.7f));
    const AttnResMixArgs mix{.stream = values(n, 1.7f),
                             .banks = c.banks,
                             .score = weights_.output_res.score,
                             .norm = weights_.final_norm,
                             .eps = config_.rms_norm_eps,
                             .out = room<bf16>(n),
                             .rows = rows,
                             .hidden = hidden};
    // A value of a bank or the stream is squared, scored and mixed.
    const double read = static_cast<double>(n) * (kBanks + 1);
    add("attn_res_mix", fmt::format("{} banks={}", sizes, kBanks), {read * sizeof(bf16), 6 * read},
        [mix](Backend& b) { b.attn_res_mix(mix); });
  }
  if (rows > sizes_.batch) return;  // prefill wants the logits of its last row alone
  int* logit_rows = room<int>(rows);
  std::iota(logit_rows, logit_rows + rows, 0);
  const LmHeadArgs head{.weight = weights_.lm_head,
                        .x = values(n, 1.7f),
                        .rows = std::span(logit_rows, static_cast<size_t>(rows)),
                        .logits = room<float>(int64_t{rows} * config_.vocab_size)};
  add("lm_head", sizes, matrix_cost({&weights_.lm_head}, rows), [head](Backend& b) { b.lm_head(head); });
}

void KernelCases::add_kda(const KdaWeights& weights, int rows) {
  const int heads = config_.kda.num_heads, hidden = config_.hidden_size;
  const int64_t n = int64_t{rows} * heads * config_.kda.head_dim;
  const std::string sizes = fmt::format("rows={}", rows);
  const KdaProjectArgs project{.weights = weights,
                               .config = config_.kda,
                               .x = values(int64_t{rows} * hidden, 1.7f),
                               .conv_input = room<bf16>(3 * n),
                               .gate = room<bf16>(n),
                               .g = room<float>(n),
                               .beta = room<float>(int64_t{rows} * heads),
                               .rows = rows};
  Cost cost =
      matrix_cost({&weights.q, &weights.k, &weights.v, &weights.f_a, &weights.f_b, &weights.beta}, rows);
  cost = cost + (config_.kda.full_rank_gate ? matrix_cost({&weights.gate}, rows)
                                            : matrix_cost({&weights.g_a, &weights.g_b}, rows));
  add("kda_project", sizes, cost, [project](Backend& b) { b.kda_project(project); });
  const KdaOutputArgs output{.weights = weights,
                             .config = config_.kda,
                             .o = floats(n, -1, 1),
                             .gate = values(n, 1.7f),
                             .eps = config_.rms_norm_eps,
                             .partial = room<float>(int64_t{plan_.lanes} * rows * hidden),
                             .rows = rows,
                             .lanes = plan_.lanes};
  add("kda_output", sizes, matrix_cost({&weights.o}, rows), [output](Backend& b) { b.kda_output(output); });
}

KdaChunkArgs KernelCases::chunk_args(const Context& c, int rows) {
  const int heads = config_.kda.num_heads;
  const int64_t n = int64_t{rows} * heads * config_.kda.head_dim;
  constexpr float kUnit = 0.153f;  // a head's vector of 128 such values has length one
  return {.config = config_.kda,
          .sequences = c.sequences,
          .slots = c.slots,
          .conv_input = values(3 * n, 1),
          .q = values(n, kUnit),
          .k = values(n, kUnit),
          .v = values(n, 1),
          .g = floats(n, -1, 0),
          .beta = floats(int64_t{rows} * heads, 0, 1),
          .out = room<float>(n)};
}

// One row of each sequence; sequence i of 16 stands at position i of its chunk, so that together they do
// what one sequence does over a chunk. A single one stands in the middle.
void KernelCases::add_kda_decode(int sequences) {
  Context& all = *contexts_.emplace_back(std::make_unique<Context>(Context{.cache = SequenceCache(shape_)}));
  cpu::PlainBackend plain(1);
  for (int s = 0; s < sequences; ++s) {
    const int before = sequences == 1 ? kChunk / 2 : s % kChunk;
    Context& one = context(std::max(1, before), kChunk);
    if (before > 0) {
      one.sequences[0].accepted = kChunk;  // the chunk stays open
      plain.kda_chunk(chunk_args(one, before));
    }
    all.slots.push_back(one.slots[0]);
    const int64_t position = kChunk + before;
    all.sequences.push_back({.first_row = s, .rows = 1, .start = position, .accepted = position + 1});
  }
  Cost cost = kda_state_cost(config_.kda, 1);
  const KdaChunkArgs chunk = chunk_args(all, sequences);
  add(
      "kda_chunk", fmt::format("sequences={} rows=1", sequences),
      {cost.bytes * sequences, cost.flops * sequences}, [chunk](Backend& b) { b.kda_chunk(chunk); },
      [&all] {
        for (const KdaSlot& slot : all.slots) *slot.base = kChunk;
      });
}

void KernelCases::add_kda_prefill(int rows) {
  Context& c = context(rows, kChunk);
  const KdaChunkArgs chunk = chunk_args(c, rows);
  add(
      "kda_chunk", fmt::format("sequences=1 rows={}", rows), kda_state_cost(config_.kda, rows),
      [chunk](Backend& b) { b.kda_chunk(chunk); }, [&c] { *c.slots[0].base = kChunk; });
}

void KernelCases::add_mla(const MlaWeights& weights, int rows, Context& c) {
  const MlaConfig& m = config_.mla;
  const int hidden = config_.hidden_size, heads = m.num_heads;
  const auto wide = [rows](int64_t width) { return rows * width; };
  const std::string sizes = fmt::format("rows={}", rows);
  const int index_heads = weights.indexer ? weights.indexer->head_weight.out : 0;

  Cost cost = matrix_cost({&weights.kv_a}, rows);
  if (m.q_lora_rank) cost = cost + matrix_cost({&weights.q_a}, rows);
  if (m.output_gate) cost = cost + matrix_cost({&weights.gate}, rows);
  if (weights.indexer) cost = cost + matrix_cost({&weights.indexer->k, &weights.indexer->head_weight}, rows);
  const bf16* x = values(wide(hidden), 1.7f);
  const MlaProjectArgs project{
      .weights = weights,
      .x = x,
      .q_a = room<bf16>(wide(m.q_lora_rank)),
      .kv_a = room<bf16>(wide(m.latent_dim())),
      .gate = m.output_gate ? room<bf16>(wide(int64_t{heads} * m.v_head_dim)) : nullptr,
      .index_key = room<bf16>(wide(kIndexKeyDim)),
      .index_weight = room<float>(wide(index_heads)),
      .rows = rows};
  add("mla_project", sizes, cost, [project](Backend& b) { b.mla_project(project); });

  if (weights.indexer) {
    const IndexFrontArgs front{.weights = weights,
                               .q_a = values(wide(m.q_lora_rank), 1.7f),
                               .index_key = values(wide(kIndexKeyDim), 1.7f),
                               .index_weight = floats(wide(index_heads), -1, 1),
                               .eps = config_.rms_norm_eps,
                               .cq = room<bf16>(wide(m.q_lora_rank)),
                               .index_query = room<bf16>(wide(int64_t{index_heads} * kIndexKeyDim)),
                               .sequences = c.sequences,
                               .pages = c.pages,
                               .rows = rows};
    // The stage folds the weights in place: a copy of them is put back before each call.
    const int64_t count = wide(index_heads);
    float* raw = room<float>(count);
    std::copy_n(front.index_weight, count, raw);
    add(
        "index_front", sizes, matrix_cost({&weights.indexer->q}, rows),
        [front](Backend& b) { b.index_front(front); },
        [raw, front, count] { std::copy_n(raw, count, front.index_weight); });
  }

  const MlaQueryArgs query{.weights = weights,
                           .config = m,
                           .q_input = m.q_lora_rank ? values(wide(m.q_lora_rank), 1.7f) : x,
                           .kv_a = values(wide(m.latent_dim()), 1.7f),
                           .eps = config_.rms_norm_eps,
                           .query = room<bf16>(wide(int64_t{heads} * m.latent_dim())),
                           .sequences = c.sequences,
                           .pages = c.pages,
                           .rows = rows};
  add("mla_query", sizes,
      matrix_cost({&weights.q}, rows) + head_matrices(heads, m.kv_lora_rank, m.qk_nope_head_dim, rows),
      [query](Backend& b) { b.mla_query(query); });

  const MlaOutputArgs output{
      .weights = weights,
      .config = m,
      .z = values(wide(int64_t{heads} * m.kv_lora_rank), 1),
      .gate = m.output_gate ? values(wide(int64_t{heads} * m.v_head_dim), 1.7f) : nullptr,
      .partial = room<float>(plan_.lanes * wide(hidden)),
      .rows = rows,
      .lanes = plan_.lanes};
  add("mla_output", sizes,
      matrix_cost({&weights.o}, rows) + head_matrices(heads, m.v_head_dim, m.kv_lora_rank, rows),
      [output](Backend& b) { b.mla_output(output); });
}

void KernelCases::add_attention(int rows, Context& c) {
  const MlaConfig& m = config_.mla;
  const int64_t depth = c.sequences[0].start;
  const std::string sizes = fmt::format("rows={} context={}", rows, depth);
  AttendArgs attend{.config = m,
                    .query = values(int64_t{rows} * m.num_heads * m.latent_dim(), 0.5f),
                    .sequences = c.sequences,
                    .pages = c.pages,
                    .selected = nullptr,
                    .count = nullptr,
                    .top_k = 0,
                    .attention_lanes = plan_.attention_lanes,
                    .dense_segment = plan_.dense_segment,
                    .out = room<bf16>(int64_t{rows} * m.num_heads * m.kv_lora_rank)};
  add("dense_attend", sizes, latent_cost(m, shape_.latent_format, rows, depth),
      [attend](Backend& b) { b.dense_attend(attend); });
  if (!config_.dsa) return;

  const DsaConfig& dsa = *config_.dsa;
  bf16* query = values(int64_t{rows} * dsa.num_heads * kIndexKeyDim, 1);
  for (int64_t i = 0; i < int64_t{rows} * dsa.num_heads * kIndexKeyDim; ++i)
    query[i] = float_to_bf16(bf16_to_float(query[i]) > 0 ? 1.0f : -0.5f);  // exact in every format
  int32_t* selected = room<int32_t>(int64_t{rows} * dsa.top_k);
  int32_t* count = room<int32_t>(rows);
  const IndexSelectArgs select{.config = dsa,
                               .index_query = query,
                               .index_weight = floats(int64_t{rows} * dsa.num_heads, -0.1f, 0.1f),
                               .sequences = c.sequences,
                               .pages = c.pages,
                               .selected = room<int32_t>(int64_t{rows} * dsa.top_k),
                               .count = room<int32_t>(rows)};
  add("index_select", fmt::format("{} top_k={}", sizes, dsa.top_k),
      index_cost(dsa, shape_.index_format, rows, depth), [select](Backend& b) { b.index_select(select); });

  // Evenly spread positions, each moved a little.
  for (int r = 0; r < rows; ++r) {
    const int64_t visible = depth + r + 1, kept = std::min<int64_t>(dsa.top_k, visible);
    int32_t* row = selected + int64_t{r} * dsa.top_k;
    std::fill_n(row, dsa.top_k, -1);
    for (int64_t i = 0; i < kept; ++i) {
      const int64_t begin = i * visible / kept, end = (i + 1) * visible / kept;
      const uint32_t word = random_words(seed_, 1, static_cast<uint64_t>(i), static_cast<uint32_t>(r))[0];
      row[i] = static_cast<int32_t>(begin + word % (end - begin));
    }
    count[r] = static_cast<int32_t>(kept);
  }
  attend.selected = selected;
  attend.count = count;
  attend.top_k = dsa.top_k;
  add("sparse_attend", fmt::format("{} top_k={}", sizes, dsa.top_k),
      selected_latent_cost(m, shape_.latent_format, dsa.top_k, rows, depth),
      [attend](Backend& b) { b.sparse_attend(attend); });
}

void KernelCases::add_dense(const GluWeights& weights, int rows) {
  const int hidden = config_.hidden_size;
  const GluMlpArgs glu{.weights = weights,
                       .activation = activation(),
                       .x = values(int64_t{rows} * hidden, 1.7f),
                       .partial = room<float>(int64_t{plan_.lanes} * rows * hidden),
                       .rows = rows,
                       .lanes = plan_.lanes};
  add("glu_mlp", fmt::format("rows={}", rows), matrix_cost({&weights.gate, &weights.up, &weights.down}, rows),
      [glu](Backend& b) { b.glu_mlp(glu); });
}

void KernelCases::add_moe(const MoeWeights& weights, int rows) {
  const MoeConfig& m = config_.moe;
  const int hidden = config_.hidden_size, in = m.expert_input_size(hidden), k = m.experts_per_token;
  const std::string sizes = fmt::format("rows={}", rows);
  const bf16* x = values(int64_t{rows} * hidden, 1.7f);
  const MoeRouteArgs route{.weights = weights,
                           .config = m,
                           .x = x,
                           .experts = room<int32_t>(int64_t{rows} * k),
                           .expert_weight = room<float>(int64_t{rows} * k),
                           .z = m.latent_size ? room<bf16>(int64_t{rows} * in) : nullptr,
                           .rows = rows};
  Cost cost = matrix_cost({&weights.router}, rows);
  if (m.latent_size) cost = cost + matrix_cost({&weights.latent_down}, rows);
  add("moe_route", sizes, cost, [route](Backend& b) { b.moe_route(route); });

  // Each row draws its experts evenly.
  int32_t* experts = room<int32_t>(int64_t{rows} * k);
  std::set<int32_t> distinct;
  for (int r = 0; r < rows; ++r) {
    std::set<int32_t> mine;
    for (uint32_t draw = 0; static_cast<int>(mine.size()) < k; ++draw)
      mine.insert(static_cast<int32_t>(random_words(seed_, 2, static_cast<uint64_t>(r), draw)[0] %
                                       static_cast<uint32_t>(m.num_experts)));
    std::copy(mine.begin(), mine.end(), experts + int64_t{r} * k);
    distinct.insert(mine.begin(), mine.end());
  }
  const MoeExpertsArgs run{.weights = weights,
                           .config = m,
                           .activation = activation(),
                           .z = values(int64_t{rows} * in, 1.7f),
                           .experts = experts,
                           .expert_weight = floats(int64_t{rows} * k, 0.1f, 0.4f),
                           .partial = room<float>(int64_t{plan_.lanes} * rows * in),
                           .rows = rows,
                           .in = in,
                           .lanes = plan_.lanes,
                           .lanes_expert = plan_.moe_lanes_expert};
  const MoeWeights::Expert& first = weights.experts[0];
  const double values_of_one = 3.0 * m.intermediate_size * in;
  add("moe_experts",
      fmt::format("{} {} of {} {}", sizes, distinct.size(), m.num_experts,
                  std::holds_alternative<Mxfp4Linear>(first.gate) ? "mxfp4" : "bf16"),
      {expert_bytes(first) * static_cast<double>(distinct.size()), 2 * values_of_one * rows * k},
      [run](Backend& b) { b.moe_experts(run); });

  const MoeCombineArgs combine{
      .weights = weights,
      .config = m,
      .routed = floats(int64_t{plan_.lanes} * rows * in, -1, 1),
      .shared = weights.shared ? floats(int64_t{plan_.lanes} * rows * hidden, -1, 1) : nullptr,
      .stream = values(int64_t{rows} * hidden, 1.7f),
      .eps = config_.rms_norm_eps,
      .rows = rows,
      .hidden = hidden,
      .lanes = plan_.lanes};
  if (m.latent_size)
    add("moe_combine", sizes, matrix_cost({&weights.latent_up}, rows),
        [combine](Backend& b) { b.moe_combine(combine); });
}

ActivationParams KernelCases::activation() const {
  return {.kind = config_.activation, .beta = config_.situ_beta, .linear_beta = config_.situ_linear_beta};
}

KernelCases::KernelCases(const ModelConfig& config, const Weights& weights, const CacheShape& shape,
                         const ReductionPlan& plan, const KernelSizes& sizes, ThreadPool& pool)
    : config_(config), weights_(weights), shape_(shape), plan_(plan), sizes_(sizes), pool_(pool) {
  // The first layer of each kind stands for all of them.
  shape_.attention_has_index.resize(std::min<size_t>(shape_.attention_has_index.size(), 1));
  shape_.kda_layers = std::min(shape_.kda_layers, 1);
  const KdaWeights* kda = nullptr;
  const MlaWeights* mla = nullptr;
  const GluWeights* dense = nullptr;
  const MoeWeights* moe = nullptr;
  for (const LayerWeights& layer : weights.layers) {
    if (!kda) kda = std::get_if<KdaWeights>(&layer.attention);
    if (!mla) mla = std::get_if<MlaWeights>(&layer.attention);
    if (!dense) dense = std::get_if<GluWeights>(&layer.mlp);
    if (!moe) moe = std::get_if<MoeWeights>(&layer.mlp);
  }
  const int row_counts[] = {1, sizes.batch, sizes.prefill_rows};
  for (int rows : row_counts) {
    if (kda) add_kda(*kda, rows);
    if (mla) add_mla(*mla, rows, context(rows, 0));
    if (dense) add_dense(*dense, rows);
    if (moe) add_moe(*moe, rows);
    add_whole_model(rows);
  }
  if (kda) {
    for (int sequences : {1, sizes.batch}) add_kda_decode(sequences);
    add_kda_prefill(sizes.prefill_rows);
  }
  if (mla) {
    add_attention(1, context(1, sizes.context));
    add_attention(sizes.prefill_rows, context(sizes.prefill_rows, sizes.context / 8 / kChunk * kChunk));
  }
  std::stable_sort(cases_.begin(), cases_.end(),
                   [](const KernelCase& a, const KernelCase& b) { return a.stage() < b.stage(); });
}

KernelCases::~KernelCases() = default;

std::vector<std::string> KernelCases::stages() {
  return {"attn_res_mix", "dense_attend", "glu_mlp",   "index_front",  "index_select", "kda_chunk",
          "kda_output",   "kda_project",  "lm_head",   "mla_output",   "mla_project",  "mla_query",
          "moe_combine",  "moe_experts",  "moe_route", "sparse_attend"};
}

}  // namespace perigee::cli
