// glu_mlp, moe_route, moe_experts, moe_combine, embed, lane_reduce, lm_head on the device: against the plain
// CPU stages, and the row rule by bits.
#include <cstring>
#include <utility>

#include "formats/mxfp4.h"
#include "gpu/both_devices.h"
#include "ops/expert_addresses.h"

namespace perigee {
namespace {

using test::gpu, test::poisoned, test::Random, test::Shared, test::shared;

// Both devices round to bf16 at the same places; sums differ in the order of additions, so that a few values
// fall to the other side.
constexpr double kOtherOrder = 1e-3;
constexpr int kMostRows = 200;

struct Matrix {
  Shared<bf16> data;
  const bf16* view = nullptr;  // the same values elsewhere
  int out, in;
  Matrix(Random& random, int out, int in)
      : data(shared(random.bf16s(int64_t{out} * in, 1.0f / std::sqrt(static_cast<float>(in))))),
        out(out),
        in(in) {}
  operator Linear() const { return {.weight = view ? view : data.data(), .out = out, .in = in}; }
};

struct Packed {
  Shared<uint8_t> packed, scale;
  int out, in;
  Packed(Random& random, int out, int in)
      : packed(int64_t{out} * in / 2), scale(int64_t{out} * in / kMxfp4Block), out(out), in(in) {
    const std::vector<float> x = random.floats(int64_t{out} * in, 1.0f / std::sqrt(static_cast<float>(in)));
    for (size_t b = 0; b < scale.size(); ++b)
      scale[b] = mxfp4_quantize_block_ocp(&x[b * kMxfp4Block], &packed[b * kMxfp4Block / 2]);
    scale[0] = 0;  // counts as zero
  }
  operator Mxfp4Linear() const {
    return {.packed = packed.data(), .scale = scale.data(), .out = out, .in = in};
  }
};

template <typename T>
Shared<T> rows_of(const Shared<T>& x, int first, int rows, int width) {
  return Shared<T>(x.begin() + int64_t{first} * width, x.begin() + int64_t{first + rows} * width);
}

// run(backend, first, rows) computes rows [first, first + rows) of a fixed input of kMostRows rows; the
// output is [lanes, rows, width].
template <typename T, typename Run>
void expect_rows_alone_and_together(const Run& run, int lanes, int width, const char* what) {
  const Shared<T> all = run(gpu(), 0, kMostRows);
  for (int rows : {1, 3, 8, 17, 64, 65}) {
    for (int first : {0, kMostRows - rows}) {
      const Shared<T> some = run(gpu(), first, rows);
      for (int l = 0; l < lanes; ++l) {
        ASSERT_EQ(
            std::memcmp(some.data() + int64_t{l} * rows * width,
                        all.data() + (int64_t{l} * kMostRows + first) * width, sizeof(T) * rows * width),
            0)
            << what << ": " << rows << " rows from " << first;
      }
    }
  }
}

TEST(GluMlpOnDevice, AsThePlainStageAndByRow) {
  constexpr int kHidden = 192, kInter = 320;
  for (const ActivationParams activation :
       {ActivationParams{.kind = Activation::kSilu}, ActivationParams{.kind = Activation::kSitu},
        ActivationParams{.kind = Activation::kSitu, .linear_beta = 0.0f}}) {
    for (int lanes : {1, 4}) {
      Random random(static_cast<uint32_t>(lanes));
      const Matrix gate(random, kInter, kHidden), up(random, kInter, kHidden), down(random, kHidden, kInter);
      const GluWeights w{.gate = gate, .up = up, .down = down};
      const Shared<bf16> x = shared(random.bf16s(kMostRows * kHidden, 3.0f));
      const auto run = [&](Backend& backend, int first, int rows) {
        const Shared<bf16> in = rows_of(x, first, rows, kHidden);
        Shared<float> partial = poisoned<float>(int64_t{lanes} * rows * kHidden);
        backend.glu_mlp({.weights = w,
                         .activation = activation,
                         .x = in.data(),
                         .partial = partial.data(),
                         .rows = rows,
                         .lanes = lanes});
        gpu().memory().wait();
        return partial;
      };
      cpu::PlainBackend plain(2);
      EXPECT_LT(test::relative_l2(run(gpu(), 0, kMostRows), run(plain, 0, kMostRows)), kOtherOrder);
      expect_rows_alone_and_together<float>(run, lanes, kHidden, "glu_mlp");
    }
  }
}

TEST(MoeRouteOnDevice, AsThePlainStage) {
  constexpr int kHidden = 128, kExperts = 100, kChoices = 6, kLatent = 64;
  Random random(5);
  const Matrix router(random, kExperts, kHidden), latent(random, kLatent, kHidden);
  Shared<float> bias = shared(random.floats(kExperts, 0.1f));
  MoeWeights w;
  w.router = router, w.latent_down = latent, w.router_bias = bias.data();
  Shared<bf16> x = shared(random.bf16s(kMostRows * kHidden));
  std::fill_n(x.begin(), kHidden, bf16{0});  // all scores equal: the bias decides
  for (bool renormalize : {true, false}) {
    const MoeConfig config{.num_experts = kExperts,
                           .experts_per_token = kChoices,
                           .latent_size = kLatent,
                           .renormalize = renormalize,
                           .routed_scaling_factor = 2.5f};
    struct Out {
      Shared<int32_t> experts = poisoned<int32_t>(kMostRows * kChoices);
      Shared<float> weight = poisoned<float>(kMostRows * kChoices);
      Shared<bf16> z = poisoned<bf16>(kMostRows * kLatent);
    };
    const auto run = [&](Backend& backend) {
      Out out;
      backend.moe_route({.weights = w,
                         .config = config,
                         .x = x.data(),
                         .experts = out.experts.data(),
                         .expert_weight = out.weight.data(),
                         .z = out.z.data(),
                         .rows = kMostRows});
      gpu().memory().wait();
      return out;
    };
    cpu::PlainBackend plain(2);
    const Out got = run(gpu()), want = run(plain);
    EXPECT_EQ(got.experts, want.experts);
    EXPECT_LT(test::relative_l2(got.weight, want.weight), 1e-5);
    EXPECT_LT(test::relative_l2(got.z, want.z), kOtherOrder);
  }
}

// Ties go to the lower id, −0 equals +0, NaN comes last: the bias alone orders equal scores.
TEST(MoeRouteOnDevice, Ties) {
  constexpr int kHidden = 32, kExperts = 40;
  const Shared<bf16> zeros(kExperts * kHidden, bf16{0});
  MoeWeights w;
  w.router = {.weight = zeros.data(), .out = kExperts, .in = kHidden};
  Shared<float> bias(kExperts, -0.5f);  // score ½: the choice is 0
  bias[7] = NAN, bias[9] = 1.0f, bias[3] = 1.0f, bias[30] = -0.5f;
  w.router_bias = bias.data();
  const MoeConfig config{.num_experts = kExperts, .experts_per_token = 39, .renormalize = true};
  Shared<int32_t> experts = poisoned<int32_t>(39);
  Shared<float> weight = poisoned<float>(39);
  gpu().moe_route({.weights = w,
                   .config = config,
                   .x = zeros.data(),
                   .experts = experts.data(),
                   .expert_weight = weight.data(),
                   .z = nullptr,
                   .rows = 1});
  gpu().memory().wait();
  for (int i = 0, e = 0; i < 39; ++i, ++e) {
    if (e == 7) ++e;
    EXPECT_EQ(experts[i], e);
  }
}

template <typename M>
void test_experts(bool latent_lanes_expert, int lanes, int choices) {
  constexpr int kIn = 128, kInter = 256, kExperts = 12;
  Random random(static_cast<uint32_t>(lanes * 10 + choices));
  std::vector<M> matrices;
  for (int e = 0; e < kExperts; ++e) {
    matrices.emplace_back(random, kInter, kIn);
    matrices.emplace_back(random, kInter, kIn);
    matrices.emplace_back(random, kIn, kInter);
  }
  if constexpr (std::is_same_v<M, Matrix>) {  // side by side, as loaded weights are
    static Shared<bf16> block;
    block.clear();
    for (const M& m : matrices) block.insert(block.end(), m.data.begin(), m.data.end());
    const bf16* at = block.data();
    for (M& m : matrices) m.view = std::exchange(at, at + m.data.size());
  }
  MoeWeights w;
  using View = std::conditional_t<std::is_same_v<M, Packed>, Mxfp4Linear, Linear>;
  for (int e = 0; e < kExperts; ++e)
    w.experts.push_back(
        {.gate = View(matrices[3 * e]), .up = View(matrices[3 * e + 1]), .down = View(matrices[3 * e + 2])});
  const Shared<ExpertAddresses> addresses = shared(expert_addresses(w.experts));
  w.addresses = addresses.data();
  const MoeConfig config{.num_experts = kExperts, .experts_per_token = choices, .intermediate_size = kInter};
  const Shared<bf16> z = shared(random.bf16s(kMostRows * kIn, 2.0f));
  Shared<int32_t> experts;
  for (int r = 0; r < kMostRows; ++r) {  // some experts are used by most rows, some by none
    std::vector<int32_t> chosen;
    for (int e = 0; static_cast<int>(chosen.size()) < choices; ++e) {
      if (e == kExperts - 2 || kExperts - 1 - e == choices - static_cast<int>(chosen.size()) ||
          random.below(3) == 0)
        chosen.push_back(e);
    }
    experts.insert(experts.end(), chosen.begin(), chosen.end());
  }
  const Shared<float> weight = shared(random.floats(kMostRows * choices));
  const auto run = [&](Backend& backend, int first, int rows) {
    const Shared<bf16> in = rows_of(z, first, rows, kIn);
    const Shared<int32_t> ids = rows_of(experts, first, rows, choices);
    const Shared<float> factors = rows_of(weight, first, rows, choices);
    Shared<float> partial = poisoned<float>(int64_t{lanes} * rows * kIn);
    backend.moe_experts({.weights = w,
                         .config = config,
                         .activation = {.kind = Activation::kSitu},
                         .z = in.data(),
                         .experts = ids.data(),
                         .expert_weight = factors.data(),
                         .partial = partial.data(),
                         .rows = rows,
                         .in = kIn,
                         .lanes = lanes,
                         .lanes_expert = latent_lanes_expert});
    gpu().memory().wait();
    return partial;
  };
  cpu::PlainBackend plain(2);
  EXPECT_LT(test::relative_l2(run(gpu(), 0, kMostRows), run(plain, 0, kMostRows)), kOtherOrder);
  expect_rows_alone_and_together<float>(run, lanes, kIn, "moe_experts");
}

TEST(MoeExpertsOnDevice, Bf16) {
  for (bool by_expert : {false, true}) {
    for (int lanes : {1, 4}) test_experts<Matrix>(by_expert, lanes, 5);
  }
}

TEST(MoeExpertsOnDevice, Mxfp4) {
  for (bool by_expert : {false, true}) {
    for (int lanes : {1, 4}) test_experts<Packed>(by_expert, lanes, 5);
  }
}

TEST(MoeCombineOnDevice, AsThePlainStageAndByRow) {
  constexpr int kHidden = 96;
  for (int latent : {0, 64}) {
    for (bool normed : {true, false}) {
      for (int lanes : {1, 2, 8}) {
        Random random(static_cast<uint32_t>(latent + lanes));
        const int in = latent ? latent : kHidden;
        const Matrix up(random, kHidden, in);
        const Shared<float> norm = shared(random.floats(in, 0.2f, 1.0f));
        MoeWeights w;
        w.latent_up = up, w.latent_norm = norm.data();
        const MoeConfig config{.latent_size = latent, .latent_norm = normed};
        const Shared<float> routed = shared(random.floats(int64_t{lanes} * kMostRows * in)),
                            expert = shared(random.floats(int64_t{lanes} * kMostRows * kHidden));
        const Shared<bf16> before = shared(random.bf16s(kMostRows * kHidden));
        const auto run = [&](Backend& backend, bool with_shared) {
          Shared<bf16> stream = before;
          backend.moe_combine({.weights = w,
                               .config = config,
                               .routed = routed.data(),
                               .shared = with_shared ? expert.data() : nullptr,
                               .stream = stream.data(),
                               .eps = 1e-5f,
                               .rows = kMostRows,
                               .hidden = kHidden,
                               .lanes = lanes});
          gpu().memory().wait();
          return stream;
        };
        cpu::PlainBackend plain(2);
        for (bool with_shared : {true, false})
          EXPECT_LT(test::relative_l2(run(gpu(), with_shared), run(plain, with_shared)), kOtherOrder);
      }
    }
  }
}

TEST(ResidualOnDevice, EmbedLaneReduceAndHead) {
  constexpr int kHidden = 160, kVocab = 50, kRows = 9;
  Random random(3);
  const Matrix table(random, kVocab, kHidden);
  std::vector<int32_t> tokens;
  for (int r = 0; r < kRows; ++r) tokens.push_back(random.below(kVocab));
  const std::vector<int> logit_rows = {8, 0, 3};
  gpu().begin_step({.tokens = tokens,
                    .logit_rows = logit_rows,
                    .sequences = {},
                    .slots = {},
                    .pages = {},
                    .page_count = {}});
  const Shared<bf16> x = shared(random.bf16s(kRows * kHidden));
  for (int lanes : {1, 2, 32}) {
    for (bool restart : {true, false}) {
      const Shared<float> partial = shared(random.floats(int64_t{lanes} * kRows * kHidden));
      const auto run = [&](Backend& backend) {
        Shared<bf16> stream = x;
        backend.lane_reduce({.partial = partial.data(),
                             .stream = stream.data(),
                             .restart = restart,
                             .lanes = lanes,
                             .rows = kRows,
                             .hidden = kHidden});
        gpu().memory().wait();
        return stream;
      };
      cpu::PlainBackend plain(1);
      EXPECT_EQ(run(gpu()), run(plain)) << "the same tree and the same roundings";
    }
  }
  const auto embedded = [&](Backend& backend) {
    Shared<bf16> out = poisoned<bf16>(kRows * kHidden);
    backend.embed({.table = table.data.data(), .tokens = tokens, .out = out.data(), .hidden = kHidden});
    gpu().memory().wait();
    return out;
  };
  const auto head = [&](Backend& backend) {
    Shared<float> logits = poisoned<float>(3 * kVocab);
    backend.lm_head({.weight = table, .x = x.data(), .rows = logit_rows, .logits = logits.data()});
    gpu().memory().wait();
    return logits;
  };
  cpu::PlainBackend plain(1);
  EXPECT_EQ(embedded(gpu()), embedded(plain));
  EXPECT_LT(test::relative_l2(head(gpu()), head(plain)), 5e-6);
}

}  // namespace
}  // namespace perigee
