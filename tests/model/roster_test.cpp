// The roster of the released models: counts that are known from their index files and model cards.
#include "model/roster.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "model/summary.h"

namespace perigee {

namespace {

std::map<std::string, TensorSpec> by_name(const ModelConfig& config) {
  std::map<std::string, TensorSpec> out;
  for_each_tensor(config, [&](const TensorSpec& t) {
    EXPECT_TRUE(out.emplace(t.name, t).second) << t.name << " occurs twice";
  });
  return out;
}

void expect_tensor(const std::map<std::string, TensorSpec>& roster, const std::string& name, DType dtype,
                   const Shape& shape) {
  const auto at = roster.find(name);
  ASSERT_NE(at, roster.end()) << name;
  EXPECT_EQ(at->second.dtype, dtype) << name;
  EXPECT_EQ(at->second.shape, shape) << name;
}

}  // namespace

TEST(Roster, CountsOfTheReleasedModels) {
  EXPECT_EQ(summarize(load_config("kimi-k3")).tensors, 497220);
  EXPECT_EQ(summarize(load_config("kimi-k3.1-pro")).tensors, 497340);
  EXPECT_EQ(summarize(load_config("kimi-linear-48b-a3b")).tensors, 20493);
}

TEST(Roster, ParametersOfTheModelCards) {
  const ModelSummary k3 = summarize(load_config("kimi-k3"));
  EXPECT_NEAR(k3.parameters / 1e12, 2.8, 0.05);
  EXPECT_NEAR(k3.active_parameters / 1e9, 104, 0.5);
  EXPECT_NEAR(k3.bytes / 1e12, 1.56, 0.01);
  const ModelSummary linear = summarize(load_config("kimi-linear-48b-a3b"));
  EXPECT_NEAR(linear.parameters / 1e9, 48, 1.5);
  EXPECT_NEAR(linear.active_parameters / 1e9, 3, 0.2);
}

TEST(Roster, KindsAddUp) {
  for (const std::string& name : builtin_config_names()) {
    const ModelSummary s = summarize(load_config(name));
    int64_t tensors = 0, parameters = 0, bytes = 0;
    for (int k = 0; k < kTensorKinds; ++k) {
      tensors += s.tensors_by_kind[k];
      parameters += s.parameters_by_kind[k];
      bytes += s.bytes_by_kind[k];
    }
    EXPECT_EQ(tensors, s.tensors);
    EXPECT_EQ(parameters, s.parameters);
    EXPECT_EQ(bytes, s.bytes);
  }
  const ModelSummary k31 = summarize(load_config("kimi-k3.1-pro"));
  EXPECT_EQ(k31.tensors_by_kind[static_cast<int>(TensorKind::kIndexer)], 24 * 5);
  EXPECT_EQ(k31.tensors_by_kind[static_cast<int>(TensorKind::kVision)], 168);
  EXPECT_EQ(k31.bytes_by_kind[static_cast<int>(TensorKind::kRoutedExperts)], int64_t{92} * 896 * 17'547'264);
}

TEST(Roster, ShapesOfK31) {
  const auto r = by_name(load_config("kimi-k3.1-pro"));
  const std::string l = "language_model.model.layers.";
  expect_tensor(r, "language_model.model.embed_tokens.weight", DType::kBF16, {163840, 7168});
  expect_tensor(r, "language_model.model.output_attn_res_proj.weight", DType::kBF16, {1, 7168});
  expect_tensor(r, l + "0.self_attn.q_conv1d.weight", DType::kF32, {12288, 1, 4});
  expect_tensor(r, l + "0.self_attn.A_log", DType::kF32, {128});
  expect_tensor(r, l + "0.self_attn.g_proj.weight", DType::kBF16, {12288, 7168});
  expect_tensor(r, l + "0.mlp.gate_proj.weight", DType::kBF16, {33792, 7168});
  expect_tensor(r, l + "3.self_attn.q_b_proj.weight", DType::kBF16, {18432, 1536});
  expect_tensor(r, l + "3.self_attn.kv_b_proj.weight", DType::kBF16, {24576, 512});
  expect_tensor(r, l + "92.self_attn.indexer.wq_b.weight", DType::kBF16, {4096, 1536});
  expect_tensor(r, l + "92.self_attn.indexer.k_norm.bias", DType::kBF16, {128});
  expect_tensor(r, l + "1.block_sparse_moe.experts.895.w1.weight_packed", DType::kU8, {3072, 1792});
  expect_tensor(r, l + "1.block_sparse_moe.experts.0.w2.weight_scale", DType::kU8, {3584, 96});
  expect_tensor(r, "vision_tower.encoder.blocks.26.wqkv.weight", DType::kBF16, {4608, 1024});
  expect_tensor(r, "mm_projector.proj.2.weight", DType::kBF16, {7168, 4096});
  EXPECT_FALSE(r.contains(l + "0.self_attn.indexer.wk.weight"));
  EXPECT_EQ(r.size(), 497340u);
}

TEST(Roster, NamesOfKimiLinear) {
  const auto r = by_name(load_config("kimi-linear-48b-a3b"));
  expect_tensor(r, "model.layers.0.self_attn.g_b_proj.weight", DType::kBF16, {4096, 128});
  expect_tensor(r, "model.layers.0.self_attn.A_log", DType::kF32, {1, 1, 32, 1});
  expect_tensor(r, "model.layers.3.self_attn.q_proj.weight", DType::kBF16, {6144, 2304});
  expect_tensor(r, "model.layers.1.block_sparse_moe.experts.255.w2.weight", DType::kBF16, {2304, 1024});
  EXPECT_FALSE(r.contains("model.layers.3.self_attn.g_proj.weight"));
}

TEST(Roster, LegacyNames) {
  EXPECT_EQ(canonical_tensor_name("m.layers.1.self_attention_res.proj_weight"),
            "m.layers.1.self_attention_res_proj.weight");
  EXPECT_EQ(canonical_tensor_name("m.layers.1.mlp_res.norm_weight"), "m.layers.1.mlp_res_norm.weight");
  EXPECT_EQ(canonical_tensor_name("m.norm.weight"), "m.norm.weight");
}

TEST(Roster, TiedHeadIsOptional) {
  const ModelConfig c =
      load_config("tests/data/configs/kimi-linear-small.json", {{"tie_word_embeddings", "true"}});
  int optional = 0;
  for_each_tensor(c, [&](const TensorSpec& t) { optional += t.optional && t.name == "lm_head.weight"; });
  EXPECT_EQ(optional, 1);
}

}  // namespace perigee
