// The matrix stages of the fast backend against the plain ones, bit by bit (NaN counts as NaN), for every
// instruction set that can run here: random shapes, tails of K, rows, threads and lanes, ordinary values and
// values of every exponent with infinities and NaN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "base/tensor.h"
#include "ops/cpu/fast/backend.h"
#include "ops/reference.h"

namespace perigee {
namespace {

using test::Random;

struct Case {
  std::string kernels;
  int threads;
  bool emulated() const { return kernels == "avx512-emulated"; }
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.kernels << ", " << c.threads << " threads"; }

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* name : {"avx2", "avx512", "avx512-emulated"}) {
    if (!cpu::find_kernels(name)) continue;
    for (int threads : {1, 3}) all.push_back({name, threads});
  }
  return all;
}

enum class Values { kOrdinary, kAny };

// bf16 values of trained scale, or any bit patterns: every exponent, infinities, NaN, subnormals.
std::vector<bf16> values(Random& random, int64_t count, Values kind, float scale = 1.0f) {
  std::vector<bf16> x = random.bf16s(count, scale);
  if (kind == Values::kAny) {
    for (bf16& v : x) {
      if (random.below(50) == 0) v = static_cast<bf16>(random.below(1 << 16));
    }
  }
  return x;
}

// A matrix and its tiles.
struct Tiled {
  std::vector<bf16> data;
  Buffer tiles;
  Linear linear;
  Tiled(Random& random, cpu::FastBackend& backend, int out, int in, Values kind, int segments = 1)
      : data(values(random, int64_t{out} * in, kind, 1.0f / std::sqrt(static_cast<float>(in)))),
        linear{.weight = data.data(), .out = out, .in = in} {
    tiles = Buffer(backend.tile_bytes(linear, segments));
    backend.tile(linear, segments, tiles.data());
    linear.tiles = {.data = tiles.data(), .segments = segments};
  }
};

Linear plain(Linear w) {
  w.tiles = {};
  return w;
}

bool same(float x, float y) { return x != x ? y != y : std::memcmp(&x, &y, sizeof x) == 0; }
bool same(bf16 x, bf16 y) {
  const float a = bf16_to_float(x);
  return a != a ? bf16_to_float(y) != bf16_to_float(y) : x == y;
}
bool same(int32_t x, int32_t y) { return x == y; }

template <typename T>
void expect_same(const std::vector<T>& got, const std::vector<T>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(same(got[i], want[i]))
        << what << " element " << i << ": " << got[i] << ", plainly " << want[i];
  }
}

class FastMatrix : public testing::TestWithParam<Case> {
 protected:
  FastMatrix() : fast(GetParam().threads, *cpu::find_kernels(GetParam().kernels)), plainly(2), random(1) {}
  // Emulated AVX-512 is slow: a smaller number there.
  int sized(int n, int emulated) const { return GetParam().emulated() ? emulated : n; }

  cpu::FastBackend fast;
  cpu::PlainBackend plainly;
  Random random;
};

TEST_P(FastMatrix, LmHead) {
  const int most = sized(40, 14);
  std::vector<int> row_counts;
  for (int rows = 0; rows <= most; ++rows) row_counts.push_back(rows);
  if (!GetParam().emulated()) row_counts.insert(row_counts.end(), {130, 333});
  for (const Values kind : {Values::kOrdinary, Values::kAny}) {
    for (int rows : row_counts) {
      const int in = 1 + random.below(sized(700, 200)), out = 1 + random.below(sized(200, 60)),
                held = rows + 3;
      const Tiled w(random, fast, out, in, kind);
      const std::vector<bf16> x = values(random, int64_t{held} * in, kind);
      std::vector<int> wanted;
      for (int r = 0; r < rows; ++r) wanted.push_back(random.below(held));
      std::vector<float> got(int64_t{rows} * out), want = got;
      fast.lm_head({.weight = w.linear, .x = x.data(), .rows = wanted, .logits = got.data()});
      plainly.lm_head({.weight = plain(w.linear), .x = x.data(), .rows = wanted, .logits = want.data()});
      expect_same(got, want, "logits");
    }
  }
}

// Every tail of K that a K block can have.
TEST_P(FastMatrix, TailsOfK) {
  for (int in = 1; in <= 70; ++in) {
    const int rows = 1 + in % sized(13, 5), out = 40;
    const Tiled w(random, fast, out, in, Values::kAny);
    const std::vector<bf16> x = values(random, int64_t{rows} * in, Values::kAny);
    std::vector<int> wanted(rows);
    for (int r = 0; r < rows; ++r) wanted[r] = r;
    std::vector<float> got(rows * out), want = got;
    fast.lm_head({.weight = w.linear, .x = x.data(), .rows = wanted, .logits = got.data()});
    plainly.lm_head({.weight = plain(w.linear), .x = x.data(), .rows = wanted, .logits = want.data()});
    expect_same(got, want, "logits");
  }
}

TEST_P(FastMatrix, KdaProject) {
  for (const Values kind : {Values::kOrdinary, Values::kAny}) {
    for (int trial = 0; trial < 8; ++trial) {
      const int heads = 1 + random.below(sized(5, 2)), D = heads * 128, rows = 1 + random.below(sized(40, 6));
      const int hidden = sized(160, 48) + 16 * random.below(4);
      const KdaConfig config{.num_heads = heads,
                             .gate_lower_bound = trial % 2 ? std::optional(-5.0f) : std::nullopt,
                             .full_rank_gate = trial % 4 < 2};
      const Tiled q(random, fast, D, hidden, kind), k(random, fast, D, hidden, kind),
          v(random, fast, D, hidden, kind), f_a(random, fast, 128, hidden, kind),
          f_b(random, fast, D, 128, kind), beta(random, fast, heads, hidden, kind),
          gate(random, fast, D, hidden, kind), g_a(random, fast, 128, hidden, kind),
          g_b(random, fast, D, 128, kind);
      const std::vector<float> a_log = random.floats(heads), dt_bias = random.floats(D, 2.0f, -3.0f);
      KdaWeights w{.q = q.linear,
                   .k = k.linear,
                   .v = v.linear,
                   .f_a = f_a.linear,
                   .f_b = f_b.linear,
                   .beta = beta.linear,
                   .a_log = a_log.data(),
                   .dt_bias = dt_bias.data()};
      if (config.full_rank_gate) {
        w.gate = gate.linear;
      } else {
        w.g_a = g_a.linear, w.g_b = g_b.linear;
      }
      const std::vector<bf16> x = values(random, int64_t{rows} * hidden, kind);
      struct Out {
        std::vector<bf16> conv_input, gate;
        std::vector<float> g, beta;
      } got, want;
      for (auto [backend, out] : {std::pair<Backend*, Out*>{&fast, &got}, {&plainly, &want}}) {
        *out = {.conv_input = std::vector<bf16>(rows * 3 * D),
                .gate = std::vector<bf16>(rows * D),
                .g = std::vector<float>(rows * D),
                .beta = std::vector<float>(rows * heads)};
        backend->kda_project({.weights = w,
                              .config = config,
                              .x = x.data(),
                              .conv_input = out->conv_input.data(),
                              .gate = out->gate.data(),
                              .g = out->g.data(),
                              .beta = out->beta.data(),
                              .rows = rows});
      }
      expect_same(got.conv_input, want.conv_input, "conv input");
      expect_same(got.gate, want.gate, "gate");
      expect_same(got.g, want.g, "g");
      expect_same(got.beta, want.beta, "beta");
    }
  }
}

TEST_P(FastMatrix, KdaOutput) {
  for (const Values kind : {Values::kOrdinary, Values::kAny}) {
    for (int lanes : {1, 2, 4, 8}) {
      const int heads = sized(8, 1), D = heads * 128, rows = 1 + random.below(sized(30, 5)), hidden = 72;
      const Tiled o_proj(random, fast, hidden, D, kind, lanes);
      const std::vector<float> norm = random.floats(128, 0.1f, 1.0f);
      std::vector<float> o = random.floats(int64_t{rows} * D);
      if (kind == Values::kAny) o[random.below(rows * D)] = INFINITY;
      const std::vector<bf16> gate = values(random, int64_t{rows} * D, kind);
      const KdaWeights w{.o_norm = norm.data(), .o = o_proj.linear};
      std::vector<float> got(lanes * rows * hidden), want = got;
      for (auto [backend, out] : {std::pair<Backend*, std::vector<float>*>{&fast, &got}, {&plainly, &want}}) {
        backend->kda_output({.weights = w,
                             .config = {.num_heads = heads},
                             .o = o.data(),
                             .gate = gate.data(),
                             .eps = 1e-5f,
                             .partial = out->data(),
                             .rows = rows,
                             .lanes = lanes});
      }
      expect_same(got, want, "partial");
    }
  }
}

// All MLA stages that multiply with weights, with and without a low-rank query, a gate and an indexer.
TEST_P(FastMatrix, Mla) {
  constexpr IndexKeyFormat kIndexFormat = IndexKeyFormat::kFp8;
  for (int trial = 0; trial < 8; ++trial) {
    const Values kind = trial % 2 ? Values::kAny : Values::kOrdinary;
    const bool dsa = trial % 4 < 2, gated = trial < 4, low_rank = dsa || trial >= 6;
    const int heads = sized(1 + random.below(4), 1), hidden = 96 + 16 * random.below(3),
              q_lora = low_rank ? 80 : 0;
    const int rank = sized(512, 64), index_heads = 1 + random.below(4);
    const int lanes = 1 << random.below(3), rows = 1 + random.below(sized(30, 5));
    const MlaConfig config{
        .num_heads = heads, .q_lora_rank = q_lora, .kv_lora_rank = rank, .output_gate = gated};
    const int latent = config.latent_dim(), D = heads * 128;
    const Tiled q_a(random, fast, std::max(q_lora, 1), hidden, kind),
        kv_a(random, fast, latent, hidden, kind),
        q(random, fast, heads * 192, low_rank ? q_lora : hidden, kind), gate(random, fast, D, hidden, kind),
        uk(random, fast, heads * rank, 128, kind), uv(random, fast, D, rank, kind),
        o(random, fast, hidden, D, kind, lanes),
        iq(random, fast, index_heads * 128, std::max(q_lora, 1), kind), ik(random, fast, 128, hidden, kind),
        ih(random, fast, index_heads, hidden, kind);
    const std::vector<float> q_norm = random.floats(q_lora, 0.1f, 1.0f),
                             kv_norm = random.floats(rank, 0.1f, 1.0f), k_norm = random.floats(128),
                             k_bias = random.floats(128);
    MlaWeights w{.q_a_norm = q_norm.data(),
                 .q = q.linear,
                 .kv_a = kv_a.linear,
                 .kv_a_norm = kv_norm.data(),
                 .w_uk_t = uk.linear,
                 .w_uv = uv.linear,
                 .o = o.linear};
    if (low_rank) w.q_a = q_a.linear;
    if (gated) w.gate = gate.linear;
    if (dsa)
      w.indexer = IndexerWeights{.q = iq.linear,
                                 .k = ik.linear,
                                 .head_weight = ih.linear,
                                 .k_norm = k_norm.data(),
                                 .k_norm_bias = k_bias.data()};
    const std::vector<bf16> x = values(random, int64_t{rows} * hidden, kind);
    const std::vector<bf16> z = values(random, int64_t{rows} * heads * rank, kind);
    const SequenceRows sequence{.first_row = 0, .rows = rows, .start = 0, .accepted = rows};
    struct Out {
      std::vector<bf16> q_a, kv_a, gate, index_key, cq, index_query, query;
      std::vector<float> index_weight, partial;
      std::vector<bf16> latents, keys;  // as readers of the cache see them
      std::vector<float> key_scales;
    } got, want;
    for (auto [backend, out] : {std::pair<Backend*, Out*>{&fast, &got}, {&plainly, &want}}) {
      const auto bf16s = [&](int width) { return std::vector<bf16>(int64_t{rows} * width); };
      *out = {.q_a = bf16s(q_lora),
              .kv_a = bf16s(latent),
              .gate = bf16s(gated ? D : 0),
              .index_key = bf16s(dsa ? 128 : 0),
              .cq = bf16s(q_lora),
              .index_query = bf16s(dsa ? index_heads * 128 : 0),
              .query = bf16s(heads * latent),
              .index_weight = std::vector<float>(dsa ? rows * index_heads : 0),
              .partial = std::vector<float>(lanes * rows * hidden),
              .latents = bf16s(latent),
              .keys = bf16s(128),
              .key_scales = std::vector<float>(rows)};
      const int64_t latent_bytes = int64_t{kPageTokens} * 2 * latent;
      std::vector<uint8_t> page(latent_bytes + kPageTokens * index_key_bytes(kIndexFormat));
      uint8_t *latents = page.data(), *keys = latents + latent_bytes;
      const PageTable pages{.page = &latents,
                            .index_offset = latent_bytes,
                            .has_index = true,
                            .latent_format = LatentFormat::kBf16,
                            .index_format = kIndexFormat};
      backend->mla_project({.weights = w,
                            .x = x.data(),
                            .q_a = out->q_a.data(),
                            .kv_a = out->kv_a.data(),
                            .gate = out->gate.data(),
                            .index_key = out->index_key.data(),
                            .index_weight = out->index_weight.data(),
                            .rows = rows});
      if (low_rank) {
        backend->index_front({.weights = w,
                              .q_a = out->q_a.data(),
                              .index_key = out->index_key.data(),
                              .index_weight = out->index_weight.data(),
                              .eps = 1e-5f,
                              .cq = out->cq.data(),
                              .index_query = out->index_query.data(),
                              .sequences = std::span(&sequence, 1),
                              .pages = std::span(&pages, 1),
                              .rows = rows});
      }
      if (rank == 512) {  // the cache format's own size
        backend->mla_query({.weights = w,
                            .config = config,
                            .q_input = low_rank ? out->cq.data() : x.data(),
                            .kv_a = out->kv_a.data(),
                            .eps = 1e-5f,
                            .query = out->query.data(),
                            .sequences = std::span(&sequence, 1),
                            .pages = std::span(&pages, 1),
                            .rows = rows});
      }
      backend->mla_output({.weights = w,
                           .config = config,
                           .z = z.data(),
                           .gate = gated ? out->gate.data() : nullptr,
                           .partial = out->partial.data(),
                           .rows = rows,
                           .lanes = lanes});
      for (int r = 0; r < rows; ++r) {
        if (rank == 512)
          decode_latent(LatentFormat::kBf16, latents + r * 2 * latent, 1.0f, &out->latents[r * latent]);
        out->key_scales[r] =
            decode_index_key(kIndexFormat, keys + index_value_offset(kIndexFormat, r),
                             keys + index_scale_offset(kIndexFormat, r), &out->keys[r * 128]);
      }
    }
    expect_same(got.q_a, want.q_a, "q_a");
    expect_same(got.kv_a, want.kv_a, "kv_a");
    expect_same(got.gate, want.gate, "gate");
    expect_same(got.index_key, want.index_key, "index key");
    expect_same(got.index_weight, want.index_weight, "index weight");
    expect_same(got.cq, want.cq, "cq");
    expect_same(got.index_query, want.index_query, "index query");
    expect_same(got.query, want.query, "query");
    expect_same(got.keys, want.keys, "stored index keys");
    expect_same(got.key_scales, want.key_scales, "stored scales of index keys");
    expect_same(got.latents, want.latents, "stored latents");
    expect_same(got.partial, want.partial, "partial");
  }
}

TEST_P(FastMatrix, GluMlp) {
  for (const Values kind : {Values::kOrdinary, Values::kAny}) {
    for (int lanes : {1, 2, 4, 8}) {
      for (const ActivationParams& activation :
           {ActivationParams{.kind = Activation::kSilu}, ActivationParams{.kind = Activation::kSitu},
            ActivationParams{.kind = Activation::kSitu, .beta = 2.0f, .linear_beta = 0.0f}}) {
        // A lane's block of columns is often no multiple of 32.
        const int hidden = 33 + random.below(sized(100, 20)), inter = 8 * (1 + random.below(sized(40, 8)));
        const int rows = 1 + random.below(sized(40, 6));
        const Tiled gate(random, fast, inter, hidden, kind), up(random, fast, inter, hidden, kind),
            down(random, fast, hidden, inter, kind, lanes);
        const GluWeights w{.gate = gate.linear, .up = up.linear, .down = down.linear};
        const std::vector<bf16> x = values(random, int64_t{rows} * hidden, kind);
        std::vector<float> got(lanes * rows * hidden), want = got;
        for (auto [backend, out] :
             {std::pair<Backend*, std::vector<float>*>{&fast, &got}, {&plainly, &want}}) {
          backend->glu_mlp({.weights = w,
                            .activation = activation,
                            .x = x.data(),
                            .partial = out->data(),
                            .rows = rows,
                            .lanes = lanes});
        }
        expect_same(got, want, "partial");
      }
    }
  }
}

TEST_P(FastMatrix, MoeRouteAndCombine) {
  for (int trial = 0; trial < 12; ++trial) {
    const Values kind = trial % 2 ? Values::kAny : Values::kOrdinary;
    const bool latent = trial % 3 != 0;
    const int hidden = 16 * (2 + random.below(6)), in = latent ? 16 * (1 + random.below(5)) : hidden,
              experts = 5 + random.below(40), lanes = 1 << random.below(4),
              rows = 1 + random.below(sized(40, 6));
    const MoeConfig config{.num_experts = experts,
                           .experts_per_token = 4,
                           .latent_size = latent ? in : 0,
                           .latent_norm = trial % 4 != 1,
                           .renormalize = trial % 2 == 0,
                           .routed_scaling_factor = 2.5f};
    const Tiled router(random, fast, experts, hidden, kind), down(random, fast, in, hidden, kind),
        up(random, fast, hidden, in, kind);
    const std::vector<float> bias = random.floats(experts, 0.2f), norm = random.floats(in, 0.1f, 1.0f);
    const MoeWeights w{.router = router.linear,
                       .router_bias = bias.data(),
                       .latent_down = down.linear,
                       .latent_up = up.linear,
                       .latent_norm = norm.data()};
    const std::vector<bf16> x = values(random, int64_t{rows} * hidden, kind),
                            stream = values(random, int64_t{rows} * hidden, kind);
    const std::vector<float> routed = random.floats(int64_t{lanes} * rows * in),
                             shared = random.floats(int64_t{lanes} * rows * hidden);
    struct Out {
      std::vector<int32_t> experts;
      std::vector<float> weight;
      std::vector<bf16> z, stream;
    } got, want;
    for (auto [backend, out] : {std::pair<Backend*, Out*>{&fast, &got}, {&plainly, &want}}) {
      *out = {.experts = std::vector<int32_t>(rows * 4),
              .weight = std::vector<float>(rows * 4),
              .z = std::vector<bf16>(latent ? rows * in : 0),
              .stream = stream};
      backend->moe_route({.weights = w,
                          .config = config,
                          .x = x.data(),
                          .experts = out->experts.data(),
                          .expert_weight = out->weight.data(),
                          .z = out->z.data(),
                          .rows = rows});
      backend->moe_combine({.weights = w,
                            .config = config,
                            .routed = routed.data(),
                            .shared = trial % 5 ? shared.data() : nullptr,
                            .stream = out->stream.data(),
                            .eps = 1e-5f,
                            .rows = rows,
                            .hidden = hidden,
                            .lanes = lanes});
    }
    expect_same(got.experts, want.experts, "experts");
    expect_same(got.weight, want.weight, "expert weight");
    expect_same(got.z, want.z, "z");
    expect_same(got.stream, want.stream, "stream");
  }
}

// An MXFP4 matrix with any nibbles and its tiles; the scales are those of trained weights, or any at all.
struct Mxfp4Tiled {
  std::vector<uint8_t> packed, scale;
  Buffer tiles;
  Mxfp4Linear linear;
  Mxfp4Tiled(Random& random, cpu::FastBackend& backend, int out, int in, Values kind, int segments = 1)
      : packed(int64_t{out} * in / 2), scale(int64_t{out} * in / 32) {
    for (uint8_t& x : packed) x = static_cast<uint8_t>(random.below(256));
    const uint8_t extremes[] = {0, 1, 2, 3, 252, 253, 254, 255};
    for (uint8_t& x : scale) {
      x = static_cast<uint8_t>(kind == Values::kOrdinary ? 120 + random.below(4) : random.below(256));
      if (kind == Values::kAny && random.below(4) == 0) x = extremes[random.below(8)];
      if (kind == Values::kAny && random.below(4)) x = static_cast<uint8_t>(120 + random.below(8));
    }
    linear = {.packed = packed.data(), .scale = scale.data(), .out = out, .in = in};
    tiles = Buffer(backend.tile_bytes(linear, segments));
    if (tiles.size() == 0) return;  // a cut that MXFP4 tiles do not have
    backend.tile(linear, segments, tiles.data());
    linear.tiles = {.data = tiles.data(), .segments = segments};
  }
};

template <typename Experts>
void compare_experts(cpu::FastBackend& fast, cpu::PlainBackend& plainly, Random& random, bool small,
                     Values kind) {
  for (int trial = 0; trial < 14; ++trial) {
    const bool by_expert = trial % 3 == 0;
    const int experts = 8, k = 1 + random.below(4), lanes = 1 << random.below(4);
    // Blocks of columns of a lane: 12 and 24 among them when inter is 96.
    const int inter = 32 * (1 + random.below(small ? 2 : 5)), in = 32 * (1 + random.below(small ? 2 : 6));
    const int rows = trial == 0 ? 1 : 1 + random.below(small ? 8 : 120);
    std::vector<Experts> matrices;
    matrices.reserve(3 * experts);
    MoeWeights w;
    const auto add = [&](int out, int columns, int segments) {
      matrices.emplace_back(random, fast, out, columns, kind, segments);
      return ExpertLinear(matrices.back().linear);
    };
    for (int e = 0; e < experts; ++e) {
      MoeWeights::Expert expert;
      expert.gate = add(inter, in, 1), expert.up = add(inter, in, 1);
      expert.down = add(in, inter, by_expert ? 1 : lanes);
      w.experts.push_back(expert);
    }
    const MoeConfig config{
        .num_experts = experts, .experts_per_token = k, .intermediate_size = inter, .latent_size = in};
    const std::vector<bf16> z = values(random, int64_t{rows} * in, kind);
    std::vector<int32_t> chosen;
    for (int r = 0; r < rows; ++r) {
      std::vector<int32_t> all = {0, 1, 2, 3, 4, 5, 6, 7};
      if (trial % 2) all = {1, 2, 5, 6};  // some experts have many users and some none
      std::shuffle(all.begin(), all.end(), std::minstd_rand(static_cast<unsigned>(r + trial)));
      std::sort(all.begin(), all.begin() + k);
      chosen.insert(chosen.end(), all.begin(), all.begin() + k);
    }
    const std::vector<float> weight = random.floats(rows * k);
    std::vector<float> got(lanes * rows * in), want = got;
    for (auto [backend, out] : {std::pair<Backend*, std::vector<float>*>{&fast, &got}, {&plainly, &want}}) {
      backend->moe_experts({.weights = w,
                            .config = config,
                            .activation = {.kind = trial % 2 ? Activation::kSitu : Activation::kSilu},
                            .z = z.data(),
                            .experts = chosen.data(),
                            .expert_weight = weight.data(),
                            .partial = out->data(),
                            .rows = rows,
                            .in = in,
                            .lanes = lanes,
                            .lanes_expert = by_expert});
    }
    expect_same(got, want, "partial");
  }
}

TEST_P(FastMatrix, MoeExperts) {
  for (const Values kind : {Values::kOrdinary, Values::kAny}) {
    compare_experts<Tiled>(fast, plainly, random, GetParam().emulated(), kind);
    compare_experts<Mxfp4Tiled>(fast, plainly, random, GetParam().emulated(), kind);
  }
}

// Every code under every scale, alone: y is the value itself. Rows enough for both ways to multiply.
TEST_P(FastMatrix, Mxfp4Values) {
  for (int rows : {1, 3, 16}) {
    for (int scale = 0; scale < 256; ++scale) {
      constexpr int kOut = 32, kIn = 32;
      Mxfp4Tiled gate(random, fast, kOut, kIn, Values::kOrdinary),
          up(random, fast, kOut, kIn, Values::kOrdinary);
      std::fill(gate.scale.begin(), gate.scale.end(), static_cast<uint8_t>(scale));
      fast.tile(gate.linear, 1, gate.tiles.data());
      Mxfp4Tiled down = Mxfp4Tiled(random, fast, kIn, kOut, Values::kOrdinary);
      MoeWeights w;
      w.experts.push_back({gate.linear, up.linear, down.linear});
      const MoeConfig config{
          .num_experts = 1, .experts_per_token = 1, .intermediate_size = kOut, .latent_size = kIn};
      std::vector<bf16> z(rows * kIn);
      for (int r = 0; r < rows; ++r) z[r * kIn + random.below(kIn)] = float_to_bf16(1.0f);
      const std::vector<int32_t> chosen(rows);
      const std::vector<float> weight(rows, 1.0f);
      std::vector<float> got(rows * kIn), want = got;
      for (auto [backend, out] : {std::pair<Backend*, std::vector<float>*>{&fast, &got}, {&plainly, &want}}) {
        backend->moe_experts({.weights = w,
                              .config = config,
                              .activation = {.kind = Activation::kSilu},
                              .z = z.data(),
                              .experts = chosen.data(),
                              .expert_weight = weight.data(),
                              .partial = out->data(),
                              .rows = rows,
                              .in = kIn,
                              .lanes = 1,
                              .lanes_expert = false});
      }
      expect_same(got, want, "partial");
    }
  }
}

TEST(FastTiles, HoldEveryValueOnce) {
  Random random(3);
  constexpr int kOut = 50, kIn = 72;
  std::vector<bf16> w(kOut * kIn);
  for (int i = 0; i < kOut * kIn; ++i) w[i] = static_cast<bf16>(i + 1);
  const Linear linear{.weight = w.data(), .out = kOut, .in = kIn};
  for (int segments : {1, 2, 4}) {
    const cpu::TileShape shape = cpu::tile_shape(linear, segments);
    std::vector<bf16> tiles(shape.bytes() / 2, bf16{0xFFFF});
    for (int64_t b = 0; b < shape.blocks(); ++b)
      cpu::tile_block(linear, shape, b, reinterpret_cast<std::byte*>(tiles.data()) + b * shape.block_bytes());
    std::vector<int> seen(kOut * kIn + 1);
    for (bf16 v : tiles) {
      ASSERT_LE(v, kOut * kIn);  // every byte was written
      ++seen[v];
    }
    for (int i = 1; i <= kOut * kIn; ++i) ASSERT_EQ(seen[i], 1);
  }
}

INSTANTIATE_TEST_SUITE_P(, FastMatrix, testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = info.param.kernels + "_" + std::to_string(info.param.threads);
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

}  // namespace
}  // namespace perigee
