// Dummy weights: pure functions of (seed, name, element), of a trained model's scale.
#include "model/dummy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/philox.h"
#include "formats/bf16.h"
#include "model/weights.h"

namespace perigee {

namespace {

const char* const kSmall[] = {"tests/data/configs/kimi-linear-small.json",
                              "tests/data/configs/kimi-k3-small.json", "tests/data/configs/k31-small.json"};

float value_at(const Tensor& t, int64_t i) {
  if (t.dtype == DType::kF32) return t.as<float>()[i];
  return bf16_to_float(t.as<bf16>()[i]);
}

}  // namespace

TEST(Dummy, SameForAnyNumberOfThreadsAndPieces) {
  const ModelConfig c = load_config(kSmall[2]);
  const TensorSet one = make_dummy_checkpoint(c, 7, 1, false), three = make_dummy_checkpoint(c, 7, 3, false);
  for_each_tensor(c, [&](const TensorSpec& spec) {
    const Tensor &a = one.tensors.at(spec.name).tensor, &b = three.tensors.at(spec.name).tensor;
    ASSERT_EQ(std::memcmp(a.data, b.data, a.bytes()), 0) << spec.name;
    const int64_t n = a.elements(), half = n / 512 * 256;
    std::string pieces(a.bytes(), '\0');
    auto* out = reinterpret_cast<std::byte*>(pieces.data());
    fill_dummy(spec, c, 7, 0, half, out);
    fill_dummy(spec, c, 7, half, n, out + static_cast<size_t>(half) * dtype_size(a.dtype));
    ASSERT_EQ(std::memcmp(a.data, pieces.data(), a.bytes()), 0) << spec.name;
  });
}

TEST(Dummy, FollowsTheDocumentedDraw) {
  const ModelConfig c = load_config(kSmall[0]);
  TensorSpec spec;
  for_each_tensor(c, [&](const TensorSpec& t) {
    if (t.name == "model.layers.1.self_attn.q_proj.weight") spec = t;
  });
  std::vector<bf16> out(64);
  fill_dummy(spec, c, 3, 256, 320, reinterpret_cast<std::byte*>(out.data()));
  uint64_t key = 0xCBF29CE484222325u;
  for (unsigned char ch : spec.name) key = (key ^ ch) * 0x100000001B3u;
  key ^= 3 * 0x9E3779B97F4A7C15u;
  for (int i = 0; i < 64; ++i) {
    const uint32_t w = random_words(key, 0x64756D6D, (256 + i) / 4, 0)[i % 4];
    const int sum = static_cast<int>((w & 255) + (w >> 8 & 255) + (w >> 16 & 255) + (w >> 24)) - 510;
    const float want = (1.0f / std::sqrt(256.0f)) * (static_cast<float>(sum) * (1.0f / 147.8f));
    EXPECT_EQ(out[i], float_to_bf16(want));
  }
}

TEST(Dummy, DependsOnSeedAndName) {
  const ModelConfig c = load_config(kSmall[1]);
  const Weights a = load_weights("", c, {LoadFormat::kDummy, 1, false}),
                b = load_weights("", c, {LoadFormat::kDummy, 1, false}),
                other = load_weights("", c, {LoadFormat::kDummy, 2, false});
  EXPECT_EQ(a.digest, b.digest);
  EXPECT_NE(a.digest, other.digest);
  const auto &k0 = std::get<KdaWeights>(a.layers[0].attention),
             &k1 = std::get<KdaWeights>(a.layers[1].attention);
  EXPECT_NE(std::memcmp(k0.q.weight, k1.q.weight, 1024), 0);
}

TEST(Dummy, ScalesAreSensible) {
  for (const char* path : kSmall) {
    const ModelConfig c = load_config(path);
    const TensorSet set = make_dummy_checkpoint(c, 0, 2, false);
    for_each_tensor(c, [&](const TensorSpec& spec) {
      if (spec.kind == TensorKind::kVision) return;
      const Tensor& t = set.tensors.at(spec.name).tensor;
      const int64_t n = t.elements();
      if (spec.form == TensorForm::kScale) {
        const uint8_t* s = t.as<uint8_t>();
        for (int64_t i = 0; i < n; ++i) ASSERT_TRUE(s[i] > 100 && s[i] < 127) << spec.name;
        return;
      }
      if (spec.form == TensorForm::kPacked) return;
      double mean = 0, square = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double v = value_at(t, i);
        ASSERT_TRUE(std::isfinite(v));
        mean += v / static_cast<double>(n);
        square += v * v / static_cast<double>(n);
      }
      if (spec.form == TensorForm::kMatrix) {
        const double want =
            spec.kind == TensorKind::kEmbedding ? 1 : 1 / std::sqrt(static_cast<double>(spec.shape[1]));
        EXPECT_NEAR(std::sqrt(square) / want, 1, 0.05) << spec.name;
        EXPECT_NEAR(mean / want, 0, 0.05) << spec.name;
      } else if (spec.name.ends_with("norm.weight")) {
        EXPECT_NEAR(mean, 1, 0.05) << spec.name;
      } else if (spec.name.ends_with("dt_bias")) {
        EXPECT_TRUE(mean < -1 && mean > -6) << spec.name;
      }
    });
  }
}

TEST(Dummy, CutReleasedModel) {
  const ModelConfig c = load_config(
      "kimi-k3.1-pro",
      parse_config_overrides(
          "num_hidden_layers=4,num_experts=2,num_experts_per_token=2,hidden_size=512,vocab_size=163840,"
          "intermediate_size=512,vision_config.text_hidden_size=512"));
  EXPECT_EQ(c.num_layers, 4);
  EXPECT_EQ(c.dsa->layers, std::vector<int>{3});
  const Weights w = load_weights("", c, {LoadFormat::kDummy, 0, false});
  ASSERT_EQ(w.layers.size(), 4u);
  EXPECT_TRUE(std::holds_alternative<MlaWeights>(w.layers[3].attention));
  EXPECT_TRUE(std::get<MlaWeights>(w.layers[3].attention).indexer.has_value());
  EXPECT_EQ(std::get<MoeWeights>(w.layers[1].mlp).experts.size(), 2u);
}

}  // namespace perigee
