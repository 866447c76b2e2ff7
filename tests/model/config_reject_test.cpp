// Configs that must be refused: each change below is an error that names the field and what was found.
#include <gtest/gtest.h>

#include <boost/json/array.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <random>

#include "base/error.h"
#include "model/config.h"

namespace perigee {

namespace {

namespace json = boost::json;

struct Change {
  const char* path;   // dotted
  const char* value;  // JSON; null pointer removes the field
  const char* names;  // must be in the message
};

// Walks "a.b.c" and sets or removes the leaf.
void apply(json::object& root, const Change& change) {
  json::object* at = &root;
  std::string_view rest = change.path;
  for (size_t dot; (dot = rest.find('.')) != std::string_view::npos; rest = rest.substr(dot + 1))
    at = &(*at)[json::string_view(rest.data(), dot)].as_object();
  const json::string_view leaf(rest.data(), rest.size());
  if (change.value)
    (*at)[leaf] = json::parse(change.value);
  else
    at->erase(leaf);
}

std::string error_of(const std::string& text) {
  try {
    parse_config(text, "test");
  } catch (const Error& e) {
    EXPECT_TRUE(e.code() == ErrorCode::kBadConfig || e.code() == ErrorCode::kUnsupported) << e.what();
    return e.what();
  }
  return "";
}

}  // namespace

class ConfigReject : public testing::TestWithParam<Change> {};

TEST_P(ConfigReject, NamesFieldAndValue) {
  json::object o = json::parse(std::string(*builtin_config_json("kimi-k3.1-pro"))).as_object();
  apply(o, GetParam());
  const std::string message = error_of(json::serialize(o));
  ASSERT_NE(message, "") << GetParam().path << " = " << (GetParam().value ? GetParam().value : "(absent)");
  EXPECT_NE(message.find(GetParam().names), std::string::npos) << message;
  EXPECT_EQ(message.rfind("test: ", 0), 0u) << message;
}

INSTANTIATE_TEST_SUITE_P(
    All, ConfigReject,
    testing::Values(
        Change{"architectures", R"(["LlamaForCausalLM"])", "LlamaForCausalLM"},
        Change{"model_type", R"("kimi_k3")", "kimi_k3"}, Change{"text_config", "3", "text_config"},
        Change{"text_config.model_type", R"("llama")", "llama"},
        Change{"text_config.hidden_size", nullptr, "text_config.hidden_size"},
        Change{"text_config.hidden_size", "0", "hidden_size"},
        Change{"text_config.hidden_size", "-7168", "-7168"},
        Change{"text_config.hidden_size", "7169", "multiple of 32"},
        Change{"text_config.hidden_size", "7168.0", "hidden_size"},
        Change{"text_config.hidden_size", R"("7168")", "hidden_size"},
        Change{"text_config.hidden_size", "18446744073709551615", "18446744073709551615"},
        Change{"text_config.hidden_size", "1e30", "hidden_size"},
        Change{"text_config.num_hidden_layers", "0", "num_hidden_layers"},
        Change{"text_config.num_hidden_layers", "92", "93"},
        Change{"text_config.num_hidden_layers", "94", "94"},
        Change{"text_config.vocab_size", "1", "vocab_size"},
        Change{"text_config.vocab_size", "1000", "token_id"},
        Change{"text_config.intermediate_size", "33", "intermediate_size"},
        Change{"text_config.hidden_act", R"("gelu")", "gelu"},
        Change{"text_config.activation_situ_beta", "0", "activation_situ_beta"},
        Change{"text_config.rms_norm_eps", "-1", "rms_norm_eps"},
        Change{"text_config.dtype", R"("float16")", "float16"},
        Change{"text_config.num_nextn_predict_layers", "1", "num_nextn_predict_layers=1"},
        Change{"text_config.rope_scaling", R"({"type": "yarn"})", "rope_scaling"},
        Change{"text_config.mla_use_nope", "false", "mla_use_nope=false"},
        Change{"text_config.mla_use_output_gate", "1", "mla_use_output_gate"},
        Change{"text_config.num_key_value_heads", "8", "num_key_value_heads=8"},
        Change{"text_config.q_lora_rank", "null", "q_lora_rank"},
        Change{"text_config.kv_lora_rank", "500", "kv_lora_rank"},
        Change{"text_config.qk_nope_head_dim", "100", "qk_nope_head_dim"},
        Change{"text_config.attn_res_block_size", "-1", "attn_res_block_size"},
        Change{"text_config.num_experts", "-1", "num_experts"},
        Change{"text_config.num_experts_per_token", "897", "num_experts_per_token"},
        Change{"text_config.num_experts_per_tok", "8", "two spellings"},
        Change{"text_config.moe_intermediate_size", nullptr, "moe_intermediate_size"},
        Change{"text_config.routed_expert_hidden_size", "null", "latent_moe_use_norm"},
        Change{"text_config.moe_router_activation_func", R"("softmax")", "softmax"},
        Change{"text_config.num_expert_group", "8", "num_expert_group=8"},
        Change{"text_config.topk_group", "4", "topk_group=4"},
        Change{"text_config.topk_method", R"("greedy")", "greedy"},
        Change{"text_config.moe_layer_freq", "0", "moe_layer_freq"},
        Change{"text_config.linear_attn_config", nullptr, "linear_attn_config"},
        Change{"text_config.linear_attn_config.head_dim", "64", "linear_attn_config.head_dim=64"},
        Change{"text_config.linear_attn_config.num_heads", "0", "num_heads"},
        Change{"text_config.linear_attn_config.short_conv_kernel_size", "3", "short_conv_kernel_size=3"},
        Change{"text_config.linear_attn_config.gate_lower_bound", "-6", "gate_lower_bound"},
        Change{"text_config.linear_attn_config.kda_layers", "[1,2,3]", "neither"},
        Change{"text_config.linear_attn_config.kda_layers", "[0,1]", "layer 0"},
        Change{"text_config.linear_attn_config.kda_layers", "[1,1]", "twice"},
        Change{"text_config.linear_attn_config.kda_layers", "[1,2,3,4]", "both"},
        Change{"text_config.linear_attn_config.kda_layers", "[1.5]", "1.5"},
        Change{"text_config.linear_attn_config.kda_layers", R"({"a":1})", "kda_layers"},
        Change{"text_config.quantization_config.format", R"("nvfp4-pack-quantized")", "nvfp4"},
        Change{"text_config.quantization_config.format", nullptr, "format"},
        Change{"text_config.quantization_config.quant_method", R"("fp8")", "fp8"},
        Change{"text_config.quantization_config.config_groups.group_0.weights.group_size", "16",
               "group_size=16"},
        Change{"text_config.quantization_config.config_groups.group_0.input_activations", R"({"num_bits":8})",
               "input_activations"},
        Change{"text_config.quantization_config.config_groups.group_1", "{}", "2 groups"},
        Change{"text_config.dsa_config", nullptr, "dsa_config"},
        Change{"text_config.dsa_config.head_dim", "64", "head_dim=64"},
        Change{"text_config.dsa_config.top_k", "0", "top_k"},
        Change{"text_config.dsa_config.topk", "1024", "two spellings"},
        Change{"text_config.dsa_config.layers", "[1]", "layer 1"},
        Change{"text_config.dsa_config.layers", "[99]", "layer 99"},
        Change{"text_config.index_topk", "1024", "index_"},
        Change{"text_config.indexer_types", R"(["full", "shared"])", "indexer_types"},
        Change{"eos_token_id", "163840", "163840"}, Change{"eos_token_id", R"(["a"])", "eos_token_id"},
        Change{"bos_token_id", "-3", "bos_token_id"},
        Change{"vision_config.attn_bias", "true", "vision_config.attn_bias"},
        Change{"vision_config.text_hidden_size", "4096", "text_hidden_size"},
        Change{"vision_config.vt_num_hidden_layers", "-1", "vt_num_hidden_layers"}));

TEST(ConfigText, BrokenJson) {
  EXPECT_NE(error_of("").find("not valid JSON"), std::string::npos);
  EXPECT_NE(error_of("[1]").find("one JSON object"), std::string::npos);
  EXPECT_NE(error_of("{\"a\":1} x").size(), 0u);
  EXPECT_NE(error_of(R"({"a": {"k": 1, "k": 2}})").find("\"k\" occurs twice"), std::string::npos);
  EXPECT_NE(error_of(R"({"": 1, "": 2})").find("occurs twice"), std::string::npos);
  EXPECT_NE(error_of(R"({"ab": 1, "\u0061b": 2})").find("\"ab\" occurs twice"), std::string::npos);
  EXPECT_NE(error_of(std::string(100000, '[')).size(), 0u);
}

// Seeded byte-level damage: either a config or an Error, never anything else.
TEST(ConfigText, DamagedBytes) {
  const std::string text(*builtin_config_json("kimi-k3.1-pro"));
  std::mt19937_64 random(1);
  for (int i = 0; i < 4000; ++i) {
    std::string broken = text;
    for (int n = 0; n < 1 + static_cast<int>(random() % 3); ++n) {
      const size_t at = random() % broken.size();
      switch (random() % 3) {
        case 0:
          broken[at] = static_cast<char>(random());
          break;
        case 1:
          broken.erase(at, random() % 20);
          break;
        default:
          broken.insert(at, 1, "0123456789-,:\"{}[]"[random() % 18]);
      }
    }
    error_of(broken);
  }
}

}  // namespace perigee
