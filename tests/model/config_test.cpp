// Configs that must be read: the released ones, every spelling of a field, overrides, generation_config.json.
#include "model/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

#include "base/error.h"
#include "make_checkpoint.h"
#include "temporary_folder.h"

namespace perigee {

namespace {

namespace json = boost::json;

json::object builtin(std::string_view name) {
  const std::string_view text = *builtin_config_json(name);
  return json::parse(json::string_view(text.data(), text.size())).as_object();
}

ModelConfig parse(const json::object& o, const ConfigOverrides& overrides = {}) {
  return parse_config(json::serialize(o), "test", overrides);
}

bool noted(const ModelConfig& c, std::string_view words) {
  return std::any_of(c.notes.begin(), c.notes.end(),
                     [&](const std::string& n) { return n.find(words) != std::string::npos; });
}

std::vector<int> mla_layers(const ModelConfig& c) {
  std::vector<int> out;
  for (int i = 0; i < c.num_layers; ++i)
    if (!c.is_kda[i]) out.push_back(i);
  return out;
}

}  // namespace

TEST(Config, BuiltinNames) {
  EXPECT_EQ(builtin_config_names(),
            (std::vector<std::string>{"kimi-linear-48b-a3b", "kimi-k3", "kimi-k3.1-pro"}));
  EXPECT_FALSE(builtin_config_json("kimi").has_value());
}

TEST(Config, KimiLinear) {
  const ModelConfig c = load_config("kimi-linear-48b-a3b");
  EXPECT_EQ(c.family, Family::kKimiLinear);
  EXPECT_EQ(c.architecture, "KimiLinearForCausalLM");
  EXPECT_EQ(c.hidden_size, 2304);
  EXPECT_EQ(c.num_layers, 27);
  EXPECT_EQ(c.activation, Activation::kSilu);
  EXPECT_FALSE(c.has_attn_res());
  EXPECT_FALSE(c.kda.gate_lower_bound.has_value());
  EXPECT_FALSE(c.kda.full_rank_gate);
  EXPECT_EQ(c.mla.q_lora_rank, 0);
  EXPECT_FALSE(c.mla.output_gate);
  EXPECT_EQ(c.mla.qk_head_dim(), 192);
  EXPECT_EQ(mla_layers(c), (std::vector<int>{3, 7, 11, 15, 19, 23, 26}));
  EXPECT_EQ(c.moe.num_experts, 256);
  EXPECT_EQ(c.moe.experts_per_token, 8);
  EXPECT_EQ(c.moe.latent_size, 0);
  EXPECT_FLOAT_EQ(c.moe.routed_scaling_factor, 2.446f);
  EXPECT_FALSE(c.mxfp4_experts);
  EXPECT_FALSE(c.dsa.has_value());
  EXPECT_EQ(c.max_position_embeddings, 1048576);
  EXPECT_EQ(c.eos_token_ids, std::vector<int64_t>{163586});
  EXPECT_EQ(c.tensor_prefix, "");
}

TEST(Config, K3) {
  const ModelConfig c = load_config("kimi-k3");
  EXPECT_EQ(c.family, Family::kKimiK3);
  EXPECT_EQ(c.num_layers, 93);
  EXPECT_EQ(c.activation, Activation::kSitu);
  EXPECT_EQ(c.situ_beta, 4.0f);
  EXPECT_EQ(c.situ_linear_beta, 25.0f);
  EXPECT_EQ(c.attn_res_block_size, 12);
  EXPECT_EQ(c.kda.gate_lower_bound, -5.0f);
  EXPECT_TRUE(c.kda.full_rank_gate);
  EXPECT_EQ(c.mla.q_lora_rank, 1536);
  EXPECT_TRUE(c.mla.output_gate);
  const auto mla = mla_layers(c);
  EXPECT_EQ(mla.size(), 24u);
  EXPECT_EQ(mla[0], 3);
  EXPECT_EQ(mla[22], 91);
  EXPECT_EQ(mla[23], 92);
  EXPECT_EQ(c.moe.latent_size, 3584);
  EXPECT_TRUE(c.moe.latent_norm);
  EXPECT_EQ(c.moe.shared_intermediate_size(), 6144);
  EXPECT_TRUE(c.mxfp4_experts);
  EXPECT_FALSE(c.is_moe(0));
  EXPECT_TRUE(c.is_moe(1));
  EXPECT_TRUE(c.vision != nullptr);
  EXPECT_EQ(c.tensor_prefix, "language_model.");
  EXPECT_FALSE(c.dsa.has_value());
  EXPECT_TRUE(noted(c, "text_config"));
}

TEST(Config, K31NestedSpelling) {
  const ModelConfig c = load_config("kimi-k3.1-pro");
  EXPECT_EQ(c.family, Family::kKimiK31);
  ASSERT_TRUE(c.dsa.has_value());
  EXPECT_EQ(c.dsa->num_heads, 32);
  EXPECT_EQ(c.dsa->top_k, 2048);
  EXPECT_EQ(c.dsa->layers, mla_layers(c));
  EXPECT_TRUE(c.is_dsa(92));
  EXPECT_FALSE(c.is_dsa(90));
  EXPECT_TRUE(noted(c, "dsa_config"));
}

TEST(Config, K31OtherSpellings) {
  for (const auto& [heads, dim, top_k, layers] :
       {std::array{"n_heads", "head_dim", "topk", "dsa_layers"},
        std::array{"index_n_heads", "index_head_dim", "index_topk", "layers"}}) {
    json::object o = builtin("kimi-k3.1-pro");
    json::object& dsa = o["text_config"].as_object()["dsa_config"].as_object();
    const json::value list = dsa["layers"];
    dsa = {{heads, 16}, {dim, 128}, {top_k, 512}, {layers, list}, {"extra", 1}};
    const ModelConfig c = parse(o);
    EXPECT_EQ(c.dsa->num_heads, 16);
    EXPECT_EQ(c.dsa->top_k, 512);
    EXPECT_EQ(c.dsa->layers.size(), 24u);
    EXPECT_TRUE(noted(c, "dsa_config.extra is not read"));
  }
  json::object o = builtin("kimi-k3.1-pro");
  json::object& text = o["text_config"].as_object();
  text["index_n_heads"] = 32;
  text["index_head_dim"] = 128;
  text["index_topk"] = 2048;
  EXPECT_EQ(parse(o).dsa->top_k, 2048);  // both spellings, in agreement
  text.erase("dsa_config");
  const ModelConfig flat = parse(o);
  EXPECT_EQ(flat.dsa->num_heads, 32);
  EXPECT_EQ(flat.dsa->layers, mla_layers(flat));
  EXPECT_TRUE(noted(flat, "index_topk"));
}

TEST(Config, Aliases) {
  json::object o = builtin("kimi-linear-48b-a3b");
  const auto rename = [&](const char* from, const char* to) {
    o[to] = o[from];
    o.erase(from);
  };
  rename("num_experts_per_token", "num_experts_per_tok");
  rename("num_expert_group", "n_group");
  rename("num_shared_experts", "n_shared_experts");
  rename("moe_renormalize", "norm_topk_prob");
  rename("model_max_length", "max_position_embeddings");
  rename("num_experts", "n_routed_experts");
  rename("dtype", "torch_dtype");
  o["head_dim"] = 72;  // meaningless in this family
  o["rope_scaling"] = nullptr;
  o["rope_theta"] = 10000.0;
  const ModelConfig a = parse(o), b = load_config("kimi-linear-48b-a3b");
  EXPECT_EQ(a.moe.experts_per_token, b.moe.experts_per_token);
  EXPECT_EQ(a.moe.num_shared_experts, b.moe.num_shared_experts);
  EXPECT_EQ(a.moe.num_experts, b.moe.num_experts);
  EXPECT_EQ(a.max_position_embeddings, b.max_position_embeddings);
  EXPECT_EQ(a.mla.qk_head_dim(), 192);
}

TEST(Config, OneLayerListIsEnough) {
  json::object o = builtin("kimi-k3");
  o["text_config"].as_object()["linear_attn_config"].as_object().erase("full_attn_layers");
  EXPECT_EQ(mla_layers(parse(o)), mla_layers(load_config("kimi-k3")));
  o = builtin("kimi-k3");
  o["text_config"].as_object()["linear_attn_config"].as_object().erase("kda_layers");
  const ModelConfig c = parse(o);
  EXPECT_EQ(mla_layers(c), mla_layers(load_config("kimi-k3")));
  EXPECT_TRUE(noted(c, "kda_layers is absent"));
}

TEST(Config, Overrides) {
  EXPECT_EQ(parse_config_overrides("a=1,b.c=x"), (ConfigOverrides{{"a", "1"}, {"b.c", "x"}}));
  const ModelConfig c =
      load_config("kimi-k3.1-pro", parse_config_overrides("num_hidden_layers=5,vocab_size=163841,"
                                                          "linear_attn_config.num_heads=8,top_k=64"));
  EXPECT_EQ(c.num_layers, 5);
  EXPECT_EQ(c.vocab_size, 163841);
  EXPECT_EQ(c.kda.num_heads, 8);
  EXPECT_EQ(c.mla.num_heads, 96);
  EXPECT_EQ(mla_layers(c), std::vector<int>{3});
  EXPECT_EQ(c.dsa->layers, std::vector<int>{3});
  EXPECT_EQ(c.dsa->top_k, 64);
  EXPECT_TRUE(load_config("kimi-k3", {{"tie_word_embeddings", "true"}}).tie_word_embeddings);
  EXPECT_EQ(load_config("kimi-k3", {{"q_lora_rank", "null"}}).mla.q_lora_rank, 0);
  EXPECT_EQ(load_config("kimi-k3.1-pro", {{"num_hidden_layers", "3"}}).dsa, std::nullopt);
}

TEST(Config, OverrideErrors) {
  for (const char* text : {"a", "=1", "a=", "a=1,,b=2"})
    EXPECT_THROW(parse_config_overrides(text), Error) << text;
  try {
    load_config("kimi-k3", {{"num_hiden_layers", "4"}});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    EXPECT_NE(std::string(e.what()).find("num_hidden_layers"), std::string::npos) << e.what();
  }
  EXPECT_THROW(load_config("kimi-k3", {{"linear_attn_config", "4"}}), Error);
  EXPECT_THROW(load_config("kimi-k3", {{"nothing.num_heads", "4"}}), Error);
  EXPECT_THROW(load_config("kimi-k3", {{"hidden_size", "[1]"}}), Error);
  EXPECT_THROW(load_config("kimi-k3", {{"hidden_size", "wide"}}), Error);
}

TEST(Config, FolderFileAndGenerationConfig) {
  TemporaryFolder folder;
  write_file(folder / "config.json", std::string(*builtin_config_json("kimi-k3")));
  EXPECT_EQ(load_config(folder.path()).eos_token_ids, std::vector<int64_t>{163586});
  write_file(folder / "generation_config.json", R"({"eos_token_id": [163586, 163585], "temperature": 1.0})");
  const ModelConfig c = load_config(folder.path());
  EXPECT_EQ(c.eos_token_ids, (std::vector<int64_t>{163586, 163585}));
  EXPECT_TRUE(noted(c, "163585"));
  EXPECT_EQ(load_config(folder / "config.json").eos_token_ids.size(), 1u);
  write_file(folder / "generation_config.json", R"({"eos_token_id": 163840})");
  EXPECT_THROW(load_config(folder.path()), Error);
  TemporaryFolder empty;
  EXPECT_THROW(load_config(empty.path()), Error);
  EXPECT_THROW(load_config("no-such-model"), Error);
}

}  // namespace perigee
