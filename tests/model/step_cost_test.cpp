// The cost model against counts by hand, from the weights as the stages see them and from the config's
// numbers.
#include "model/step_cost.h"

#include <gtest/gtest.h>

#include "model/weights.h"

namespace perigee {

namespace {

const char* const kSmall[] = {"tests/data/configs/kimi-linear-small.json",
                              "tests/data/configs/kimi-k3-small.json", "tests/data/configs/k31-small.json"};

double values(const Linear& w) { return static_cast<double>(w.out) * w.in; }

double values(const ExpertLinear& w) {
  return std::visit([](const auto& m) { return static_cast<double>(m.out) * m.in; }, w);
}

double values(const GluWeights& w) { return values(w.gate) + values(w.up) + values(w.down); }

// Values of every matrix that one row multiplies with, the head and the routed experts left out.
double matrix_values(const ModelConfig& c, const Weights& w) {
  double n = 0;
  for (const LayerWeights& layer : w.layers) {
    if (const auto* a = std::get_if<KdaWeights>(&layer.attention)) {
      for (const Linear* m :
           {&a->q, &a->k, &a->v, &a->f_a, &a->f_b, &a->beta, &a->gate, &a->g_a, &a->g_b, &a->o})
        n += values(*m);
    } else {
      const auto& a2 = std::get<MlaWeights>(layer.attention);
      for (const Linear* m : {&a2.q_a, &a2.q, &a2.kv_a, &a2.gate, &a2.o}) n += values(*m);
      n += 2.0 * c.mla.num_heads * c.mla.kv_lora_rank * 128;  // W_UK and W_UV
      if (a2.indexer) n += values(a2.indexer->q) + values(a2.indexer->k) + values(a2.indexer->head_weight);
    }
    if (const auto* dense = std::get_if<GluWeights>(&layer.mlp)) {
      n += values(*dense);
    } else {
      const auto& moe = std::get<MoeWeights>(layer.mlp);
      n += values(moe.router) + values(moe.latent_down) + values(moe.latent_up) + values(*moe.shared);
    }
  }
  return n;
}

const MoeWeights& first_moe(const Weights& w, int* layers) {
  const MoeWeights* first = nullptr;
  *layers = 0;
  for (const LayerWeights& layer : w.layers) {
    if (const auto* moe = std::get_if<MoeWeights>(&layer.mlp)) {
      first = first ? first : moe;
      ++*layers;
    }
  }
  return *first;
}

}  // namespace

TEST(StepCost, WeightsAreWhatTheStagesRead) {
  for (const char* path : kSmall) {
    const ModelConfig c = load_config(path);
    const Weights w = load_weights("", c, {LoadFormat::kDummy, 0, false});
    int moe_layers = 0;
    const MoeWeights& moe = first_moe(w, &moe_layers);
    const auto& e = moe.experts[0];
    const double expert = values(e.gate) + values(e.up) + values(e.down);
    const double head = values(w.lm_head), matrices = matrix_values(c, w);
    const Cost none = step_cost(c, {}), all = step_cost(c, {.distinct_experts = double(c.moe.num_experts)});

    // Vectors (norms, convolutions, biases) come on top of the matrices: below two hundredths of them.
    Cost cache;
    for (int layer = 0; layer < c.num_layers; ++layer) {
      const Cost part = c.is_kda[layer] ? kda_state_cost(c.kda, 1)
                        : c.is_dsa(layer)
                            ? Cost{.bytes = 0,
                                   .flops = index_cost(*c.dsa, IndexKeyFormat::kFp8, 1, 0).flops +
                                            selected_latent_cost(c.mla, LatentFormat::kBf16, 64, 1, 0).flops}
                            : latent_cost(c.mla, LatentFormat::kBf16, 1, 0);
      cache.bytes += part.bytes;
      cache.flops += part.flops;
    }
    const double bytes = 2 * (matrices + head), extra = none.bytes - cache.bytes - bytes;
    EXPECT_GT(extra, 0) << path;
    EXPECT_LT(extra, 0.02 * bytes) << path;
    const double flops = 2 * (matrices + head + moe_layers * c.moe.experts_per_token * expert);
    EXPECT_GT(none.flops - cache.flops, flops) << path;
    EXPECT_LT(none.flops - cache.flops, 1.02 * flops) << path;

    const double expert_bytes = c.mxfp4_experts ? expert * (0.5 + 1.0 / 32) : expert * 2;
    EXPECT_NEAR(all.bytes - none.bytes, moe_layers * c.moe.num_experts * expert_bytes, 1) << path;
    EXPECT_EQ(all.flops, none.flops) << path;
  }
}

TEST(StepCost, RowsAndSequencesMultiply) {
  const ModelConfig c = load_config(kSmall[1]);
  const double head = 2.0 * c.vocab_size * c.hidden_size;
  const Cost one = step_cost(c, {.rows = 4, .logit_rows = 1});
  const Cost two = step_cost(c, {.sequences = 2, .rows = 4, .logit_rows = 1});
  const Cost more_logits = step_cost(c, {.rows = 4, .logit_rows = 4});
  EXPECT_NEAR(two.flops, 2 * one.flops, 1);
  EXPECT_LT(two.bytes, 2 * one.bytes);
  EXPECT_EQ(more_logits.bytes, one.bytes);
  EXPECT_NEAR(more_logits.flops - one.flops, 3 * head, 1);
}

// 8 heads; keys that 3 rows behind 100 tokens see: 101 + 102 + 103.
TEST(StepCost, DenseLayersReadEveryLatent) {
  const MlaConfig mla{.num_heads = 8};
  const Cost bf16 = latent_cost(mla, LatentFormat::kBf16, 3, 100),
             fp8 = latent_cost(mla, LatentFormat::kFp8, 3, 100);
  EXPECT_EQ(bf16.bytes, 100 * 1152);
  EXPECT_EQ(fp8.bytes, 100 * 576);
  EXPECT_EQ(bf16.flops, 2.0 * 8 * (576 + 512) * 306);
}

// A gather reads top_k latents at any depth, and the index keys of all.
TEST(StepCost, SelectionIsAGather) {
  const MlaConfig mla{.num_heads = 8};
  const DsaConfig dsa{.num_heads = 4, .top_k = 64, .layers = {}};
  const auto selected = [&](int64_t depth) {
    return selected_latent_cost(mla, LatentFormat::kNvfp4, dsa.top_k, 1, depth);
  };
  EXPECT_EQ(selected(32).bytes, 32 * 352);
  EXPECT_EQ(selected(1000).bytes, 64 * 352);
  EXPECT_EQ(selected(1000).flops, selected(100000).flops);
  EXPECT_EQ(index_cost(dsa, IndexKeyFormat::kMxfp4, 1, 1000).bytes, 1000 * 68);
  EXPECT_EQ(index_cost(dsa, IndexKeyFormat::kFp8, 2, 1000).flops, 2.0 * 4 * 128 * (1001 + 1002));
}

// 2 heads: S, the conv inputs of three positions, and 7.5 chunk rows of k, G, w and T.
TEST(StepCost, KdaReadsItsStateOnce) {
  const KdaConfig kda{.num_heads = 2};
  const Cost one = kda_state_cost(kda, 1), chunk = kda_state_cost(kda, 16);
  EXPECT_EQ(one.bytes, 2 * 65536 + 3 * 3 * 256 * 2 + 7.5 * (256 * 10 + 2 * 16 * 4));
  EXPECT_EQ(chunk.bytes, one.bytes);
  // Per head: S is used three times a row; over 16 rows A has 120 sums of 128, M, u and M·u 136 each.
  EXPECT_EQ(chunk.flops, 2.0 * 2 * (3 * 16 * 128 * 128 + 128 * (120 + 3 * 136)));
}

}  // namespace perigee
