// kda_project, kda_conv_norm_gate, kda_chunk and kda_output. The chunk-row form is held against the
// recurrence that it stands for, in fp64, and against the oracle's vectors.
#include <cstring>
#include <memory>

#include "cache/sequence_cache.h"
#include "ops/kda_inputs.h"
#include "ops/reference.h"
#include "ops/vectors.h"

namespace perigee {
namespace {

using test::Doubles, test::KdaInputs, test::Matrix, test::Random;

constexpr int kHeads = 2, kHead = 128, kD = kHeads * kHead;

KdaConfig kda_config(int heads = kHeads) {
  KdaConfig config;
  config.num_heads = heads;
  return config;
}

SequenceCache one_kda_layer(int heads = kHeads) {
  return SequenceCache(CacheShape{.attention_has_index = {}, .kda_layers = 1, .kda_heads = heads});
}

TEST(KdaProject, AgainstFp64) {
  constexpr int kRows = 4, kHidden = 192;
  for (bool bounded : {true, false}) {
    for (bool full_rank : {true, false}) {
      Random random(bounded * 2 + full_rank);
      const Matrix q(random, kD, kHidden), k(random, kD, kHidden), v(random, kD, kHidden);
      const Matrix gate(random, kD, kHidden), g_a(random, kHead, kHidden), g_b(random, kD, kHead);
      const Matrix f_a(random, kHead, kHidden), f_b(random, kD, kHead), beta(random, kHeads, kHidden);
      const std::vector<float> a_log = random.floats(kHeads, 0.7f), dt_bias = random.floats(kD, 2.0f, -1.0f);
      KdaWeights w;
      w.q = q, w.k = k, w.v = v, w.gate = gate, w.g_a = g_a, w.g_b = g_b, w.f_a = f_a, w.f_b = f_b,
      w.beta = beta;
      w.a_log = a_log.data(), w.dt_bias = dt_bias.data();
      KdaConfig config = kda_config();
      config.full_rank_gate = full_rank;
      if (bounded) config.gate_lower_bound = -5.0f;
      const std::vector<bf16> x = random.bf16s(kRows * kHidden);
      std::vector<bf16> conv_input(kRows * 3 * kD), gates(kRows * kD);
      std::vector<float> g(kRows * kD), betas(kRows * kHeads);
      cpu::PlainBackend(2).kda_project({.weights = w,
                                        .config = config,
                                        .x = x.data(),
                                        .conv_input = conv_input.data(),
                                        .gate = gates.data(),
                                        .g = g.data(),
                                        .beta = betas.data(),
                                        .rows = kRows});
      const Doubles in = test::widen(x);
      const Doubles parts[3] = {q * in, k * in, v * in};
      Doubles want_conv(kRows * 3 * kD);
      for (int r = 0; r < kRows; ++r) {
        for (int part = 0; part < 3; ++part)
          std::copy_n(parts[part].begin() + r * kD, kD, want_conv.begin() + (r * 3 + part) * kD);
      }
      EXPECT_LT(test::relative_l2(conv_input, test::rounded(want_conv)), test::kBf16SamePlaces);
      const Doubles want_gate = full_rank ? gate * in : g_b * test::rounded(g_a * in);
      EXPECT_LT(test::relative_l2(gates, test::rounded(want_gate)), test::kBf16SamePlaces);
      Doubles want_g = f_b * test::rounded(f_a * in);
      for (size_t i = 0; i < want_g.size(); ++i) {
        const double u = want_g[i] + dt_bias[i % kD], A = std::exp(double{a_log[i % kD / kHead]});
        want_g[i] = bounded ? -5 * test::sigmoid(A * u) : -A * test::softplus(u);
      }
      EXPECT_LT(test::relative_l2(g, want_g), 1e-4)
          << "f_a is rounded to bf16 and may fall to the other side";
      Doubles want_beta = beta * in;
      for (double& b : want_beta) b = test::sigmoid(b);
      EXPECT_LT(test::relative_l2(betas, want_beta), test::kFp32);
    }
  }
}

TEST(KdaProject, OracleDecays) {
  const test::Vectors v("kda");
  const std::vector<bf16> u = v.bf16s("u");  // [4, 1, 128]
  const std::vector<float> a_log = v.read<float>("a_log");
  // f_a = 1 · u through a unit matrix of one column each: f_b = identity, f_a row d picks channel d of x.
  std::vector<bf16> identity(kHead * kHead);
  for (int d = 0; d < kHead; ++d) identity[d * kHead + d] = float_to_bf16(1.0f);
  const Linear eye{.weight = identity.data(), .out = kHead, .in = kHead};
  const Linear one{.weight = identity.data(), .out = 1, .in = kHead};
  const std::vector<float> dt_bias(kHead, 0.0f);
  KdaWeights w;
  w.q = w.k = w.v = w.gate = w.f_a = w.f_b = eye;
  w.beta = one;
  w.a_log = a_log.data(), w.dt_bias = dt_bias.data();
  for (bool bounded : {true, false}) {
    KdaConfig config = kda_config(1);
    config.full_rank_gate = true;
    if (bounded) config.gate_lower_bound = -5.0f;
    std::vector<bf16> conv_input(4 * 3 * kHead), gate(4 * kHead);
    std::vector<float> g(4 * kHead), beta(4);
    cpu::PlainBackend(1).kda_project({.weights = w,
                                      .config = config,
                                      .x = u.data(),
                                      .conv_input = conv_input.data(),
                                      .gate = gate.data(),
                                      .g = g.data(),
                                      .beta = beta.data(),
                                      .rows = 4});
    EXPECT_LT(test::relative_l2(g, v.doubles(bounded ? "log_decay_bounded" : "log_decay_unbounded")),
              test::kFp32);
  }
}

// Rows [start, start + rows) as one step, of which those from `accepted` on may be dropped later.
std::vector<float> run_chunk(cpu::PlainBackend& backend, SequenceCache& cache, const KdaConfig& config,
                             const KdaInputs& x, int start, int rows, int accepted) {
  const int D = config.num_heads * kHead;
  const KdaSlot slot = cache.slot(0);
  const SequenceRows sequence{.first_row = 0, .rows = rows, .start = start, .accepted = accepted};
  std::vector<float> out(int64_t{rows} * D);
  backend.kda_chunk({.config = config,
                     .sequences = std::span(&sequence, 1),
                     .slots = std::span(&slot, 1),
                     .conv_input = x.conv_input.data() + int64_t{start} * 3 * D,
                     .q = x.q.data() + int64_t{start} * D,
                     .k = x.k.data() + int64_t{start} * D,
                     .v = x.v.data() + int64_t{start} * D,
                     .g = x.g.data() + int64_t{start} * D,
                     .beta = x.beta.data() + int64_t{start} * config.num_heads,
                     .out = out.data()});
  cache.set_length(start + rows);
  return out;
}

class KdaChunk : public testing::TestWithParam<bool> {};

TEST_P(KdaChunk, IsTheRecurrence) {
  constexpr int kTokens = 224;
  Random random(40 + GetParam());
  const KdaInputs x(random, kTokens, kHeads, GetParam());
  const KdaConfig config = kda_config();
  cpu::PlainBackend backend(2);
  SequenceCache cache = one_kda_layer();
  const std::vector<float> out = run_chunk(backend, cache, config, x, 0, kTokens, kTokens);
  Doubles state;
  const Doubles want = test::kda_recurrence(x, &state);
  const double error = test::relative_l2(out, want);
  RecordProperty("relative_l2", std::to_string(error));
  EXPECT_LT(error, 2e-6);
  // The worst token too, so that no error hides behind large outputs elsewhere.
  for (int t = 0; t < kTokens; ++t) {
    const std::vector<float> row(out.begin() + t * kD, out.begin() + (t + 1) * kD);
    ASSERT_LT(test::relative_l2(row, Doubles(want.begin() + t * kD, want.begin() + (t + 1) * kD)), 5e-6) << t;
  }
  EXPECT_EQ(*cache.slot(0).base, kTokens);
  const KdaSlot slot = cache.slot(0);
  std::vector<float> S;
  for (int h = 0; h < kHeads; ++h) {
    const float* head = slot.state + h * slot.state_stride;
    S.insert(S.end(), head, head + kHead * kHead);
  }
  EXPECT_LT(test::relative_l2(S, state), 2e-6);
}

// Decode, verification with rejected drafts and prefill give the bits of one pass.
TEST_P(KdaChunk, StepsAndDroppedDraftsKeepTheBits) {
  constexpr int kTokens = 120;
  Random random(50 + GetParam());
  const KdaInputs x(random, kTokens, kHeads, GetParam()), wrong(random, kTokens, kHeads, GetParam());
  const KdaConfig config = kda_config();
  cpu::PlainBackend backend(1);
  SequenceCache whole = one_kda_layer(), cache = one_kda_layer();
  const std::vector<float> want = run_chunk(backend, whole, config, x, 0, kTokens, kTokens);
  for (int at = 0; at < kTokens;) {
    const int rows = std::min(kTokens - at, 1 + random.below(20));
    if (random.below(2) && rows <= 8 && at + rows <= kTokens) {  // drafts that are all rejected
      run_chunk(backend, cache, config, wrong, at, rows, at);
      cache.set_length(at);
    }
    const std::vector<float> got = run_chunk(backend, cache, config, x, at, rows, at + rows);
    ASSERT_EQ(std::memcmp(got.data(), &want[int64_t{at} * kD], got.size() * sizeof(float)), 0)
        << "from " << at;
    at += rows;
  }
}

TEST_P(KdaChunk, OracleVectors) {
  const std::string kind = GetParam() ? "bounded" : "unbounded";
  const test::Vectors v("kda");
  Random random(0);
  KdaInputs x(random, 0, 1, true);
  x.tokens = 48;
  x.q = v.bf16s("q"), x.k = v.bf16s("k"), x.v = v.bf16s("v");
  x.conv_input.assign(48 * 3 * kHead, 0);
  for (bf16 b : v.bf16s("beta")) x.beta.push_back(bf16_to_float(b));
  for (bf16 g : v.bf16s("g_" + kind)) x.g.push_back(bf16_to_float(g));
  cpu::PlainBackend backend(1);
  SequenceCache cache = one_kda_layer(1);
  const KdaConfig config = kda_config(1);
  const std::vector<float> out = run_chunk(backend, cache, config, x, 0, 48, 48);
  std::vector<float> every_eighth, state;
  for (size_t i = 0; i < out.size(); i += 8) every_eighth.push_back(out[i]);
  EXPECT_LT(test::relative_l2(every_eighth, v.doubles("out_" + kind)), 1e-6);
  for (int d = 0; d < kHead; d += 8) {
    for (int c = 0; c < kHead; c += 8) state.push_back(cache.slot(0).state[d * kHead + c]);
  }
  EXPECT_LT(test::relative_l2(state, v.doubles("state_" + kind)), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(, KdaChunk, testing::Values(true, false),
                         [](const auto& info) { return info.param ? "bounded" : "unbounded"; });

TEST(KdaConv, AtTheStartAndOverSteps) {
  constexpr int kTokens = 60;
  Random random(60);
  const KdaInputs x(random, kTokens, kHeads, true);
  const std::vector<float> taps = random.floats(3 * kD * 4, 0.5f);
  KdaWeights w;
  w.conv_q = taps.data(), w.conv_k = taps.data() + kD * 4, w.conv_v = taps.data() + 2 * kD * 4;
  const KdaConfig config = kda_config();
  cpu::PlainBackend backend(2);
  SequenceCache cache = one_kda_layer();
  std::vector<bf16> q(kTokens * kD), k(kTokens * kD), v(kTokens * kD);
  for (int at = 0; at < kTokens;) {
    const int rows = std::min(kTokens - at, at < 6 ? 1 : 1 + random.below(22));
    const KdaSlot slot = cache.slot(0);
    const SequenceRows sequence{.first_row = 0, .rows = rows, .start = at, .accepted = at + rows};
    backend.kda_conv_norm_gate({.weights = w,
                                .config = config,
                                .sequences = std::span(&sequence, 1),
                                .slots = std::span(&slot, 1),
                                .conv_input = x.conv_input.data() + int64_t{at} * 3 * kD,
                                .q = q.data() + int64_t{at} * kD,
                                .k = k.data() + int64_t{at} * kD,
                                .v = v.data() + int64_t{at} * kD});
    run_chunk(backend, cache, config, x, at, rows, at + rows);  // keeps the conv inputs
    at += rows;
  }
  Doubles want[3] = {Doubles(kTokens * kD), Doubles(kTokens * kD), Doubles(kTokens * kD)};
  for (int t = 0; t < kTokens; ++t) {
    for (int part = 0; part < 3; ++part) {
      for (int h = 0; h < kHeads; ++h) {
        double* y = &want[part][int64_t{t} * kD + h * kHead];
        for (int c = 0; c < kHead; ++c) {
          const int channel = h * kHead + c;
          for (int tap = 0; tap < 4; ++tap) {
            const int p = t - 3 + tap;
            if (p >= 0)
              y[c] += double{taps[(part * kD + channel) * 4 + tap]} *
                      bf16_to_float(x.conv_input[(int64_t{p} * 3 + part) * kD + channel]);
          }
          y[c] = test::silu(y[c]);
        }
        const double norm = std::sqrt(test::mean_square(y, kHead) * kHead + 1e-6);
        const double scale = part == 0 ? 1 / (norm * std::sqrt(128.0)) : part == 1 ? 1 / norm : 1.0;
        for (int c = 0; c < kHead; ++c) y[c] *= scale;
      }
    }
  }
  EXPECT_LT(test::relative_l2(q, test::rounded(want[0])), test::kBf16SamePlaces);
  EXPECT_LT(test::relative_l2(k, test::rounded(want[1])), test::kBf16SamePlaces);
  EXPECT_LT(test::relative_l2(v, test::rounded(want[2])), test::kBf16SamePlaces);
}

TEST(KdaOutput, AgainstFp64) {
  constexpr int kRows = 3, kHidden = 80;
  for (int lanes : {1, 2, 8}) {
    Random random(70 + lanes);
    const Matrix o_proj(random, kHidden, kD);
    const std::vector<float> norm = random.floats(kHead, 0.2f, 1.0f), o = random.floats(kRows * kD, 0.3f);
    const std::vector<bf16> gate = random.bf16s(kRows * kD, 2.0f);
    KdaWeights w;
    w.o_norm = norm.data();
    w.o = o_proj;
    const KdaConfig config = kda_config();
    std::vector<float> partial(lanes * kRows * kHidden);
    cpu::PlainBackend(2).kda_output({.weights = w,
                                     .config = config,
                                     .o = o.data(),
                                     .gate = gate.data(),
                                     .eps = 1e-5f,
                                     .partial = partial.data(),
                                     .rows = kRows,
                                     .lanes = lanes});
    Doubles y = test::rms(test::widen(o), norm, 1e-5);
    for (size_t i = 0; i < y.size(); ++i) y[i] = test::rounded(y[i] * test::sigmoid(bf16_to_float(gate[i])));
    EXPECT_LT(test::relative_l2(partial, o_proj.lanes(y, lanes)), test::kBf16SamePlaces) << lanes << " lanes";
  }
}

}  // namespace
}  // namespace perigee
