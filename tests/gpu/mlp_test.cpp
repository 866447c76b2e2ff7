// glu_mlp, moe_route, moe_combine, embed, lane_reduce, lm_head on the device: against the plain CPU stages,
// and the row rule by bits. moe_experts has a file of its own.
#include <cstring>

#include "gpu/shared_weights.h"

namespace perigee {
namespace {

using test::gpu, test::poisoned, test::Random, test::rows_of, test::Shared, test::shared;
using Matrix = test::SharedMatrix;

// Both devices round to bf16 at the same places; sums differ in the order of additions, so that a few values
// fall to the other side.
constexpr double kOtherOrder = 1e-3;
constexpr int kMostRows = 200;

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

// Logits of small integers are exact in any order of their sum, so that scores, ties and weights have the
// same bits on both devices: many experts with the same score, some whose logit is NaN, one row that is all
// NaN.
TEST(MoeRouteOnDevice, ManyExpertsTiesAndNaN) {
  constexpr int kHidden = 64, kRows = 40, kNanRow = 17;
  for (int count : {257, 384, 896, 2048}) {
    for (int choices : {1, 8, 16, 200}) {
      Random random(static_cast<uint32_t>(count + choices));
      Shared<bf16> router(int64_t{count} * kHidden, bf16{0}), x(int64_t{kRows} * kHidden, bf16{0});
      for (bf16& v : router) v = float_to_bf16(0.125f * static_cast<float>(random.below(3) - 1));
      for (bf16& v : x) v = float_to_bf16(static_cast<float>(random.below(3) - 1));
      const bf16 nan = float_to_bf16(NAN);
      for (int e = 0; e < count; e += 37) router[e * kHidden + 3] = nan;
      std::fill_n(x.begin() + kNanRow * kHidden, kHidden, nan);
      Shared<float> bias(count, 0.0f);
      for (float& b : bias) b = 0.25f * static_cast<float>(random.below(2));
      MoeWeights w;
      w.router = {.weight = router.data(), .out = count, .in = kHidden};
      w.router_bias = bias.data();
      const MoeConfig config{.num_experts = count,
                             .experts_per_token = choices,
                             .renormalize = true,
                             .routed_scaling_factor = 2.5f};
      const auto run = [&](Backend& backend, int first, int rows) {
        const Shared<bf16> in = rows_of(x, first, rows, kHidden);
        Shared<int32_t> experts = poisoned<int32_t>(int64_t{rows} * choices);
        Shared<float> weight = poisoned<float>(int64_t{rows} * choices);
        backend.moe_route({.weights = w,
                           .config = config,
                           .x = in.data(),
                           .experts = experts.data(),
                           .expert_weight = weight.data(),
                           .z = nullptr,
                           .rows = rows});
        gpu().memory().wait();
        return std::pair(experts, weight);
      };
      cpu::PlainBackend plain(2);
      const auto [experts, weight] = run(gpu(), 0, kRows);
      const auto [want_experts, want_weight] = run(plain, 0, kRows);
      const std::string what = std::to_string(choices) + " of " + std::to_string(count);
      EXPECT_TRUE(test::same_rows(experts, want_experts, 1, 0, choices)) << what;
      EXPECT_TRUE(test::same_rows(weight, want_weight, 1, 0, choices)) << what;
      for (int i = 0; i < choices; ++i) EXPECT_EQ(experts[kNanRow * choices + i], i) << "no score: by id";
      for (int row : {0, kRows - 1}) {
        const auto [alone, alone_weight] = run(gpu(), row, 1);
        EXPECT_TRUE(test::same_rows(alone, experts, 1, row, choices)) << what;
        EXPECT_TRUE(test::same_rows(alone_weight, weight, 1, row, choices)) << what;
      }
    }
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

// Logits of more rows than the kernel for few takes, gathered in no order and twice; a row's are those that
// it has alone.
TEST(ResidualOnDevice, HeadOfManyGatheredRows) {
  constexpr int kHidden = 520, kVocab = 300, kRows = 220;
  Random random(4);
  const Matrix table(random, kVocab, kHidden);
  const Shared<bf16> x = shared(random.bf16s(kRows * kHidden));
  const auto head = [&](Backend& backend, const std::vector<int>& rows) {
    gpu().begin_step(
        {.tokens = {}, .logit_rows = rows, .sequences = {}, .slots = {}, .pages = {}, .page_count = {}});
    Shared<float> logits = poisoned<float>(static_cast<int64_t>(rows.size()) * kVocab);
    backend.lm_head({.weight = table, .x = x.data(), .rows = rows, .logits = logits.data()});
    gpu().memory().wait();
    return logits;
  };
  for (int count : {64, 65, 130, 200}) {
    std::vector<int> rows = {kRows - 1, 0, 0};
    while (static_cast<int>(rows.size()) < count) rows.push_back(random.below(kRows));
    const Shared<float> all = head(gpu(), rows);
    cpu::PlainBackend plain(2);
    EXPECT_LT(test::relative_l2(all, head(plain, rows)), 5e-6) << count << " rows";
    for (int i : {0, 1, 2, 40, count - 1})
      EXPECT_TRUE(test::same_rows(head(gpu(), {rows[i]}), all, 1, i, kVocab)) << count << " rows";
  }
}

}  // namespace
}  // namespace perigee
