// glu_mlp, moe_route, moe_experts (bf16 and MXFP4) and moe_combine.
#include <numeric>

#include "ops/reference.h"
#include "ops/vectors.h"

namespace perigee {
namespace {

using test::Doubles, test::Matrix, test::Random;

double activate(const ActivationParams& p, double gate, double up) {
  if (p.kind == Activation::kSilu) return test::silu(gate) * up;
  const double b = p.beta, l = p.linear_beta;
  return b * std::tanh(gate / b) * test::sigmoid(gate) * (l > 0 ? l * std::tanh(up / l) : up);
}

const ActivationParams kActivations[] = {{.kind = Activation::kSilu},
                                         {.kind = Activation::kSitu},
                                         {.kind = Activation::kSitu, .beta = 2.0f, .linear_beta = 0.0f}};

TEST(GluMlp, AgainstFp64) {
  constexpr int kRows = 4, kHidden = 96, kInter = 160;
  for (const ActivationParams& activation : kActivations) {
    for (int lanes : {1, 2, 4}) {
      Random random(lanes);
      const Matrix gate(random, kInter, kHidden), up(random, kInter, kHidden), down(random, kHidden, kInter);
      const GluWeights w{.gate = gate, .up = up, .down = down};
      const std::vector<bf16> x = random.bf16s(kRows * kHidden, 4.0f);
      std::vector<float> partial(lanes * kRows * kHidden);
      cpu::PlainBackend(2).glu_mlp({.weights = w,
                                    .activation = activation,
                                    .x = x.data(),
                                    .partial = partial.data(),
                                    .rows = kRows,
                                    .lanes = lanes});
      const Doubles g = gate * test::widen(x), u = up * test::widen(x);
      Doubles a;
      for (size_t i = 0; i < g.size(); ++i) a.push_back(test::rounded(activate(activation, g[i], u[i])));
      EXPECT_LT(test::relative_l2(partial, down.lanes(a, lanes)), test::kBf16SamePlaces) << lanes << " lanes";
    }
  }
}

// Through unit matrices the gate's and the up projection's outputs are the vectors' own.
TEST(GluMlp, OracleActivations) {
  const test::Vectors v("situ");
  constexpr int kN = 96;
  std::vector<bf16> x = v.bf16s("gate"), pick_gate(kN * 2 * kN), pick_up(kN * 2 * kN), eye(kN * kN);
  const std::vector<bf16> up = v.bf16s("up");
  x.insert(x.end(), up.begin(), up.end());
  for (int i = 0; i < kN; ++i) {
    pick_gate[i * 2 * kN + i] = pick_up[i * 2 * kN + kN + i] = eye[i * kN + i] = float_to_bf16(1.0f);
  }
  const GluWeights w{.gate = {pick_gate.data(), kN, 2 * kN},
                     .up = {pick_up.data(), kN, 2 * kN},
                     .down = {eye.data(), kN, kN}};
  for (bool situ : {true, false}) {
    std::vector<float> out(kN);
    cpu::PlainBackend(1).glu_mlp({.weights = w,
                                  .activation = {.kind = situ ? Activation::kSitu : Activation::kSilu},
                                  .x = x.data(),
                                  .partial = out.data(),
                                  .rows = 1,
                                  .lanes = 1});
    EXPECT_LT(test::relative_l2(out, test::rounded(v.doubles(situ ? "situ" : "swiglu"))),
              test::kBf16SamePlaces);
  }
}

// --- router

struct Routed {
  std::vector<int32_t> experts;
  std::vector<float> weight;
};

Routed route(const MoeWeights& w, const MoeConfig& config, const std::vector<bf16>& x, int rows,
             bf16* z = nullptr) {
  Routed out{std::vector<int32_t>(rows * config.experts_per_token),
             std::vector<float>(rows * config.experts_per_token)};
  cpu::PlainBackend(2).moe_route({.weights = w,
                                  .config = config,
                                  .x = x.data(),
                                  .experts = out.experts.data(),
                                  .expert_weight = out.weight.data(),
                                  .z = z,
                                  .rows = rows});
  return out;
}

TEST(MoeRoute, AgainstFp64) {
  constexpr int kRows = 20, kHidden = 128, kExperts = 24, kLatent = 64;
  for (bool renormalize : {true, false}) {
    Random random(10 + renormalize);
    const Matrix router(random, kExperts, kHidden), latent_down(random, kLatent, kHidden);
    const std::vector<float> bias = random.floats(kExperts, 0.2f);
    MoeWeights w;
    w.router = router, w.latent_down = latent_down;
    w.router_bias = bias.data();
    const MoeConfig config{.num_experts = kExperts,
                           .experts_per_token = 5,
                           .latent_size = kLatent,
                           .renormalize = renormalize,
                           .routed_scaling_factor = 2.5f};
    const std::vector<bf16> x = random.bf16s(kRows * kHidden);
    std::vector<bf16> z(kRows * kLatent);
    const Routed got = route(w, config, x, kRows, z.data());
    const Doubles logits = router * test::widen(x);
    Doubles want_weight;
    std::vector<int32_t> want_experts;
    for (int r = 0; r < kRows; ++r) {
      Doubles s;
      for (int e = 0; e < kExperts; ++e) s.push_back(test::sigmoid(logits[r * kExperts + e]));
      std::vector<int32_t> order(kExperts);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return s[a] + bias[a] > s[b] + bias[b]; });
      order.resize(5);
      std::sort(order.begin(), order.end());
      double total = 0;
      for (int e : order) total += s[e];
      for (int e : order) want_weight.push_back(2.5 * (renormalize ? s[e] / total : s[e]));
      want_experts.insert(want_experts.end(), order.begin(), order.end());
    }
    EXPECT_EQ(got.experts, want_experts);
    EXPECT_LT(test::relative_l2(got.weight, want_weight), test::kFp32);
    EXPECT_LT(test::relative_l2(z, test::rounded(latent_down * test::widen(x))), test::kBf16SamePlaces);
  }
}

// Equal scores go to the lowest ids; a NaN is chosen only when nothing else is left.
TEST(MoeRoute, TiesAndNan) {
  constexpr int kExperts = 8, kHidden = 32;
  std::vector<bf16> router(kExperts * kHidden), x(kHidden, float_to_bf16(1.0f));
  std::vector<float> bias(kExperts, 0.0f);
  MoeWeights w;
  w.router = {.weight = router.data(), .out = kExperts, .in = kHidden};
  w.router_bias = bias.data();
  MoeConfig config{.num_experts = kExperts, .experts_per_token = 3};
  EXPECT_EQ(route(w, config, x, 1).experts, (std::vector<int32_t>{0, 1, 2}));
  bias[6] = 0.1f;
  EXPECT_EQ(route(w, config, x, 1).experts, (std::vector<int32_t>{0, 1, 6}));
  router[0] = router[2 * kHidden] = 0x7FC0;  // experts 0 and 2
  EXPECT_EQ(route(w, config, x, 1).experts, (std::vector<int32_t>{1, 3, 6}));
  config.experts_per_token = 7;
  EXPECT_EQ(route(w, config, x, 1).experts, (std::vector<int32_t>{0, 1, 3, 4, 5, 6, 7}));
}

// --- experts

// One expert matrix in both forms: as bf16, and as MXFP4 with the value of a nibble from the format's table.
struct ExpertMatrix {
  int out, in;
  std::vector<bf16> dense;
  std::vector<uint8_t> packed, scale;

  ExpertMatrix(Random& random, int out, int in)
      : out(out), in(in), dense(int64_t{out} * in), packed(dense.size() / 2), scale(dense.size() / 32) {
    constexpr double kValues[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    for (uint8_t& s : scale) s = static_cast<uint8_t>(120 + random.below(6));
    for (uint8_t& p : packed) p = static_cast<uint8_t>(random.below(256));
    for (size_t i = 0; i < dense.size(); ++i) {
      const int nibble = packed[i / 2] >> (i % 2 * 4) & 15;
      const double value = (nibble & 8 ? -1 : 1) * kValues[nibble & 7] * std::ldexp(1.0, scale[i / 32] - 127);
      dense[i] = float_to_bf16(static_cast<float>(value));
    }
  }
  ExpertLinear view(bool mxfp4) const {
    if (mxfp4) return Mxfp4Linear{.packed = packed.data(), .scale = scale.data(), .out = out, .in = in};
    return Linear{.weight = dense.data(), .out = out, .in = in};
  }
  // Row o times x over columns [begin, end).
  double product(int o, const double* x, int begin, int end) const {
    double sum = 0;
    for (int i = begin; i < end; ++i) sum += bf16_to_float(dense[int64_t{o} * in + i]) * x[i];
    return sum;
  }
};

class MoeExperts : public testing::TestWithParam<bool> {};

TEST_P(MoeExperts, AgainstFp64) {
  constexpr int kRows = 7, kIn = 64, kInter = 128, kExperts = 8, kPerToken = 3;
  const bool mxfp4 = GetParam();
  for (int lanes : {1, 2, 4}) {
    for (bool lanes_expert : {false, true}) {
      Random random(20 + lanes);
      std::vector<ExpertMatrix> gate, up, down;
      MoeWeights w;
      for (int e = 0; e < kExperts; ++e) {
        gate.emplace_back(random, kInter, kIn);
        up.emplace_back(random, kInter, kIn);
        down.emplace_back(random, kIn, kInter);
      }
      for (int e = 0; e < kExperts; ++e)
        w.experts.push_back(
            {.gate = gate[e].view(mxfp4), .up = up[e].view(mxfp4), .down = down[e].view(mxfp4)});
      const MoeConfig config{.num_experts = kExperts,
                             .experts_per_token = kPerToken,
                             .intermediate_size = kInter,
                             .latent_size = kIn};
      const ActivationParams activation{.kind = Activation::kSitu};
      const std::vector<bf16> z = random.bf16s(kRows * kIn);
      std::vector<int32_t> experts;
      std::vector<float> weight;
      for (int r = 0; r < kRows; ++r) {
        const int first =
            random.below(kExperts - 2);  // ascending, with an expert no row uses and popular ones
        for (int e : {first, first + 1, kExperts - 1}) experts.push_back(e);
        for (int i = 0; i < kPerToken; ++i)
          weight.push_back(0.2f + 0.1f * static_cast<float>(random.below(9)));
      }
      std::vector<float> partial(lanes * kRows * kIn);
      cpu::PlainBackend(2).moe_experts({.weights = w,
                                        .config = config,
                                        .activation = activation,
                                        .z = z.data(),
                                        .experts = experts.data(),
                                        .expert_weight = weight.data(),
                                        .partial = partial.data(),
                                        .rows = kRows,
                                        .in = kIn,
                                        .lanes = lanes,
                                        .lanes_expert = lanes_expert});
      Doubles want(partial.size());
      for (int r = 0; r < kRows; ++r) {
        const Doubles x = test::widen(std::vector<bf16>(z.begin() + r * kIn, z.begin() + (r + 1) * kIn));
        for (int i = 0; i < kPerToken; ++i) {
          const int e = experts[r * kPerToken + i];
          Doubles a(kInter);
          for (int o = 0; o < kInter; ++o)
            a[o] = test::rounded(activate(activation, gate[e].product(o, x.data(), 0, kIn),
                                          up[e].product(o, x.data(), 0, kIn)));
          for (int lane = 0; lane < lanes; ++lane) {
            if (lanes_expert && e / (kExperts / lanes) != lane) continue;
            const int begin = lanes_expert ? 0 : lane * kInter / lanes;
            const int end = lanes_expert ? kInter : (lane + 1) * kInter / lanes;
            for (int d = 0; d < kIn; ++d)
              want[(lane * kRows + r) * kIn + d] +=
                  weight[r * kPerToken + i] * test::rounded(down[e].product(d, a.data(), begin, end));
          }
        }
      }
      EXPECT_LT(test::relative_l2(partial, want), test::kBf16SamePlaces)
          << lanes << (lanes_expert ? " lanes of experts" : " lanes of columns");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, MoeExperts, testing::Values(false, true),
                         [](const auto& info) { return info.param ? "mxfp4" : "bf16"; });

TEST(MoeVectors, RouterAndExperts) {
  const test::Vectors v("moe");
  constexpr int kRows = 6, kIn = 32;
  const std::vector<bf16> h = v.bf16s("h"), router = v.bf16s("router"), down = v.bf16s("latent_down");
  const std::vector<float> bias = v.read<float>("router_bias");
  MoeWeights w;
  w.router = {.weight = router.data(), .out = 4, .in = 64};
  w.router_bias = bias.data();
  w.latent_down = {.weight = down.data(), .out = kIn, .in = 64};
  std::vector<std::vector<uint8_t>> bytes;
  for (int e = 0; e < 4; ++e) {
    const auto matrix = [&](const char* name) {
      const std::string prefix = "experts." + std::to_string(e) + "." + name;
      bytes.push_back(v.read<uint8_t>(prefix + ".weight_packed"));
      bytes.push_back(v.read<uint8_t>(prefix + ".weight_scale"));
      return ExpertLinear(Mxfp4Linear{
          .packed = bytes[bytes.size() - 2].data(), .scale = bytes.back().data(), .out = 32, .in = 32});
    };
    MoeWeights::Expert expert;
    expert.gate = matrix("w1"), expert.up = matrix("w3"), expert.down = matrix("w2");
    w.experts.push_back(expert);
  }
  const MoeConfig config{
      .num_experts = 4, .experts_per_token = 2, .intermediate_size = 32, .latent_size = kIn};
  std::vector<bf16> z(kRows * kIn);
  const Routed got = route(w, config, h, kRows, z.data());
  EXPECT_EQ(got.experts, v.read<int32_t>("experts"));
  EXPECT_LT(test::relative_l2(got.weight, v.doubles("expert_weights")), test::kFp32);
  std::vector<float> partial(kRows * kIn);
  cpu::PlainBackend(1).moe_experts({.weights = w,
                                    .config = config,
                                    .activation = {.kind = Activation::kSitu},
                                    .z = z.data(),
                                    .experts = got.experts.data(),
                                    .expert_weight = got.weight.data(),
                                    .partial = partial.data(),
                                    .rows = kRows,
                                    .in = kIn,
                                    .lanes = 1,
                                    .lanes_expert = false});
  EXPECT_LT(test::relative_l2(partial, v.doubles("routed")), test::kBf16);
}

TEST(MoeCombine, AgainstFp64) {
  constexpr int kRows = 3, kHidden = 96, kLatent = 48;
  for (int latent : {0, kLatent}) {
    for (bool norm : {false, true}) {
      for (bool shared : {false, true}) {
        for (int lanes : {1, 4}) {
          Random random(30 + lanes);
          const Matrix up(random, kHidden, kLatent);
          const std::vector<float> latent_norm = random.floats(kLatent, 0.2f, 1.0f);
          MoeWeights w;
          w.latent_up = up;
          w.latent_norm = latent_norm.data();
          const MoeConfig config{.latent_size = latent, .latent_norm = norm};
          const int in = latent ? latent : kHidden;
          const std::vector<float> routed = random.floats(lanes * kRows * in);
          const std::vector<float> extra = random.floats(lanes * kRows * kHidden);
          std::vector<bf16> stream = random.bf16s(kRows * kHidden, 2.0f);
          const auto sum_lanes = [&](const std::vector<float>& x) {
            Doubles y(x.size() / lanes);
            for (size_t i = 0; i < x.size(); ++i) y[i % y.size()] += x[i];
            return y;
          };
          Doubles y = sum_lanes(routed);
          if (latent) y = up * test::rounded(norm ? test::rms(y, latent_norm, 1e-5) : y);
          const Doubles s = sum_lanes(extra);
          Doubles want = test::widen(stream);
          for (size_t i = 0; i < want.size(); ++i)
            want[i] = test::rounded(want[i] + test::rounded(y[i] + (shared ? s[i] : 0)));
          cpu::PlainBackend(2).moe_combine({.weights = w,
                                            .config = config,
                                            .routed = routed.data(),
                                            .shared = shared ? extra.data() : nullptr,
                                            .stream = stream.data(),
                                            .eps = 1e-5f,
                                            .rows = kRows,
                                            .hidden = kHidden,
                                            .lanes = lanes});
          EXPECT_LT(test::relative_l2(stream, want), test::kBf16SamePlaces)
              << "latent " << latent << ", norm " << norm << ", shared " << shared << ", lanes " << lanes;
        }
      }
    }
  }
}

}  // namespace
}  // namespace perigee
