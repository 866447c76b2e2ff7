// parse_config: config.json → ModelConfig. Reads each block in turn, takes every spelling in use, and refuses
// what the engine does not run.
#include <algorithm>
#include <cmath>

#include "formats/cache_records.h"
#include "model/config.h"
#include "model/config_fields.h"
#include "model/config_json.h"
#include "model/config_overrides.h"

namespace perigee {

namespace {

namespace json = boost::json;

constexpr Range kCount{0, 1 << 20};
constexpr Range kWidth{32, 1 << 20, 32};  // kernels work in pieces of 32 values

struct Names {
  Family family;
  std::string_view model_type, architecture;
};
constexpr Names kFamilies[] = {
    {Family::kKimiLinear, "kimi_linear", "KimiLinearForCausalLM"},
    {Family::kKimiK3, "kimi_k3", "KimiK3ForConditionalGeneration"},
    {Family::kKimiK31, "kimi_k31", "KimiK31ForConditionalGeneration"},
};

void read_family(const Fields& root, ModelConfig& c) {
  const json::value* list = root.object().if_contains("architectures");
  if (list && list->is_array() && !list->get_array().empty() && list->get_array()[0].is_string())
    c.architecture = std::string(list->get_array()[0].get_string());
  const std::string model_type = root.text({"model_type"}, "");
  for (const Names& n : kFamilies) {
    if (c.architecture.empty() ? model_type != n.model_type : c.architecture != n.architecture) continue;
    if (!model_type.empty() && model_type != n.model_type)
      root.reject("model_type", fmt::format("\"{}\" does not belong to architecture {} (\"{}\" does)",
                                            model_type, n.architecture, n.model_type));
    c.family = n.family;
    c.architecture = n.architecture;
    return;
  }
  root.reject("architectures", fmt::format("\"{}\" (model_type \"{}\") is not a model perigee runs; "
                                           "KimiLinearForCausalLM, KimiK3ForConditionalGeneration and "
                                           "KimiK31ForConditionalGeneration are",
                                           c.architecture, model_type));
}

void read_body(const Fields& f, ModelConfig& c) {
  c.hidden_size = f.integer({"hidden_size"}, {}, kWidth);
  c.num_layers = f.integer({"num_hidden_layers"}, {}, {1, 4096});
  c.vocab_size = f.integer({"vocab_size"}, {}, {2, 1 << 24});
  c.intermediate_size = f.integer({"intermediate_size"}, {}, kWidth);
  c.rms_norm_eps = static_cast<float>(f.number({"rms_norm_eps"}, 1e-5, 1e-12, 1e-1));
  c.max_position_embeddings =
      f.integer({"max_position_embeddings", "model_max_length"}, int64_t{1} << 20, {1, int64_t{1} << 40});
  c.attn_res_block_size = f.integer({"attn_res_block_size"}, 0, {0, 4096});

  const std::string act = f.text({"hidden_act"}, "silu");
  if (act == "situ") {
    c.activation = Activation::kSitu;
    c.situ_beta = static_cast<float>(f.number({"activation_situ_beta"}, 4.0, 1e-3, 1e6));
    c.situ_linear_beta = f.has({"activation_situ_linear_beta"})
                             ? static_cast<float>(f.number({"activation_situ_linear_beta"}, {}, -1e6, 1e6))
                             : 0.0f;
  } else if (act != "silu") {
    f.reject("hidden_act", fmt::format("\"{}\" is not an activation perigee runs; silu and situ are", act));
  }
  for (std::string_view name : {"dtype", "torch_dtype"})
    f.only({name}, "bfloat16", "weights and activations are bf16");
  f.only({"num_nextn_predict_layers"}, 0, "extra prediction layers are not part of this family");
  f.only({"attention_bias"}, false, "linear layers have no bias");
  if (f.has({"rope_scaling"}))
    f.reject("rope_scaling",
             "position scaling was found, but attention in this family has no rotary part; set it to null");
}

// 0-based, sorted, each once and inside the model; with `cut`, layers past the end are dropped.
std::vector<int> read_layers(const Fields& f, std::initializer_list<std::string_view> names, int num_layers,
                             bool cut) {
  std::vector<int> out;
  for (int64_t layer : f.integers(names)) {
    if (cut && layer > num_layers) continue;
    if (layer < 1 || layer > num_layers)
      f.reject(*names.begin(),
               fmt::format("layer {} is outside 1…{} (num_hidden_layers)", layer, num_layers));
    out.push_back(static_cast<int>(layer - 1));
  }
  std::sort(out.begin(), out.end());
  if (const auto twice = std::adjacent_find(out.begin(), out.end()); twice != out.end())
    f.reject(*names.begin(), fmt::format("layer {} occurs twice", *twice + 1));
  return out;
}

void read_kda(const Fields& text, ModelConfig& c, bool cut) {
  const auto child = text.child("linear_attn_config");
  if (!child)
    text.reject("linear_attn_config", "the object is missing; it names the KDA layers and their heads");
  const Fields& f = *child;
  c.kda.num_heads = f.integer({"num_heads"}, {}, {1, 4096});
  f.only({"head_dim"}, 128, "KDA kernels and states have 128 channels a head");
  f.only({"short_conv_kernel_size"}, 4, "the short convolution has four taps");
  if (f.has({"gate_lower_bound"})) {
    // The chunked form factors e^G over 16 positions; |16·bound| ≤ 80 keeps both factors inside fp32.
    c.kda.gate_lower_bound = static_cast<float>(f.number({"gate_lower_bound"}, {}, -5.0, -1e-3));
  }
  c.kda.full_rank_gate = f.boolean({"use_full_rank_gate"}, false);

  const bool has_kda = f.has({"kda_layers"}), has_full = f.has({"full_attn_layers"});
  if (!has_kda && !has_full)
    f.reject("kda_layers",
             "neither kda_layers nor full_attn_layers is there; one of them must name the layers");
  const std::vector<int> kda = read_layers(f, {"kda_layers"}, c.num_layers, cut);
  const std::vector<int> full = read_layers(f, {"full_attn_layers"}, c.num_layers, cut);
  c.is_kda.assign(c.num_layers, !has_kda);
  for (int layer : kda) c.is_kda[layer] = true;
  if (!has_kda)
    for (int layer : full) c.is_kda[layer] = false;
  if (!has_kda || !has_full) {
    c.notes.push_back(fmt::format("{} is absent: the layers that {} does not name",
                                  f.full_name(has_kda ? "full_attn_layers" : "kda_layers"),
                                  has_kda ? "kda_layers" : "full_attn_layers"));
    return;
  }
  std::vector<int> kinds(c.num_layers, 0);
  for (int layer : kda) ++kinds[layer];
  for (int layer : full) ++kinds[layer];
  for (int layer = 0; layer < c.num_layers; ++layer)
    if (kinds[layer] != 1)
      f.reject("kda_layers",
               fmt::format("layer {} is in {} of kda_layers and full_attn_layers; each layer belongs to "
                           "exactly one",
                           layer + 1, kinds[layer] == 0 ? "neither" : "both"));
}

void read_mla(const Fields& f, ModelConfig& c) {
  c.mla.num_heads = f.integer({"num_attention_heads"}, {}, {1, 4096});
  f.only({"num_key_value_heads"}, c.mla.num_heads, "every MLA head has its own keys and values");
  c.mla.q_lora_rank = f.has({"q_lora_rank"}) ? f.integer({"q_lora_rank"}, {}, kWidth) : 0;
  c.mla.kv_lora_rank = f.integer({"kv_lora_rank"}, {}, kWidth);
  c.mla.qk_nope_head_dim = f.integer({"qk_nope_head_dim"}, {}, kWidth);
  c.mla.qk_rope_head_dim = f.integer({"qk_rope_head_dim"}, {}, kWidth);
  f.only({"kv_lora_rank"}, kLatentRank, "the cache's latent record holds 512 + 64 values");
  f.only({"qk_rope_head_dim"}, kLatentRope, "the cache's latent record holds 512 + 64 values");
  c.mla.v_head_dim = f.integer({"v_head_dim"}, {}, kWidth);
  c.mla.output_gate = f.boolean({"mla_use_output_gate"}, false);
  f.only({"mla_use_nope"}, true, "rotary positions are not part of this family");
  if (!f.has({"mla_use_nope"})) c.notes.emplace_back("mla_use_nope is absent: taken as true");
}

void read_moe(const Fields& f, ModelConfig& c) {
  MoeConfig& m = c.moe;
  m.num_experts = f.integer({"num_experts", "n_routed_experts"}, 0, {0, 65536});
  m.first_dense_layers = f.integer({"first_k_dense_replace"}, 0, kCount);
  m.layer_freq = f.integer({"moe_layer_freq"}, 1, {1, 4096});
  if (m.num_experts == 0) {
    m.first_dense_layers = c.num_layers;
    c.notes.emplace_back("num_experts is absent: every layer is dense");
    return;
  }
  m.experts_per_token = f.integer({"num_experts_per_token", "num_experts_per_tok"}, {}, {1, m.num_experts});
  m.num_shared_experts = f.integer({"num_shared_experts", "n_shared_experts"}, 0, {0, 64});
  m.intermediate_size = f.integer({"moe_intermediate_size"}, {}, kWidth);
  m.latent_size =
      f.has({"routed_expert_hidden_size"}) ? f.integer({"routed_expert_hidden_size"}, {}, kWidth) : 0;
  m.latent_norm = f.boolean({"latent_moe_use_norm"}, false);
  if (m.latent_norm && !m.latent_size)
    f.reject("latent_moe_use_norm", "true was found without routed_expert_hidden_size; add the latent width");
  m.renormalize = f.boolean({"moe_renormalize", "norm_topk_prob"}, true);
  m.routed_scaling_factor = static_cast<float>(f.number({"routed_scaling_factor"}, 1.0, 1e-6, 1e6));
  f.only({"moe_router_activation_func", "scoring_func"}, "sigmoid", "the router scores with a sigmoid");
  f.only({"num_expert_group", "n_group"}, 1, "the router has no expert groups");
  f.only({"topk_group"}, 1, "the router has no expert groups");
  f.only({"topk_method"}, "noaux_tc", "the router selects by score plus correction bias");
}

void read_quantization(const Fields& text, const Fields& root, ModelConfig& c) {
  auto f = text.child("quantization_config");
  if (!f) f = root.child("quantization_config");
  if (!f) return;
  f->only({"quant_method"}, "compressed-tensors", "experts are bf16 or compressed-tensors MXFP4");
  f->only({"format"}, "mxfp4-pack-quantized", "experts are bf16 or compressed-tensors MXFP4");
  if (!f->has({"format"}))
    f->reject("format", "the field is missing; \"mxfp4-pack-quantized\" is the one that runs");
  if (const auto groups = f->child("config_groups")) {
    if (groups->object().size() != 1)
      groups->reject("group_0",
                     fmt::format("{} groups were found; exactly one runs", groups->object().size()));
    const auto group = groups->child(groups->object().begin()->key());
    if (!group) groups->reject("group_0", "null was found; an object is needed");
    group->only({"format"}, "mxfp4-pack-quantized", "experts are bf16 or compressed-tensors MXFP4");
    if (const auto w = group->child("weights")) {
      w->only({"num_bits"}, 4, "MXFP4 values have four bits");
      w->only({"type"}, "float", "MXFP4 values are e2m1");
      w->only({"group_size"}, 32, "MXFP4 blocks have 32 values");
      w->only({"strategy"}, "group", "MXFP4 has a scale per block");
      w->only({"symmetric"}, true, "MXFP4 has no zero point");
      w->only({"dynamic"}, false, "weights are stored quantised");
    }
    if (group->has({"input_activations"}))
      group->reject("input_activations", "quantised activations are not supported; set it to null");
  }
  c.mxfp4_experts = true;
  c.notes.emplace_back("experts are MXFP4 (compressed-tensors mxfp4-pack-quantized)");
}

void read_dsa(const Fields& text, const Fields& root, ModelConfig& c, bool cut) {
  auto f = text.child("dsa_config");
  if (!f) f = root.child("dsa_config");
  const bool flat = text.has({"index_topk"}) || text.has({"index_n_heads"}) || text.has({"index_head_dim"});
  if (!f && !flat) {
    if (c.family == Family::kKimiK31)
      text.reject("dsa_config",
                  "the object is missing (and so are index_n_heads, index_head_dim, index_topk); a K3.1 "
                  "model needs one of the two spellings");
    return;
  }
  if (c.mla.q_lora_rank == 0)
    text.reject("q_lora_rank",
                "null was found, but the DSA indexer reads the low-rank query; give its width");
  const auto read = [&](const Fields& from, bool nested) {
    DsaConfig d;
    if (nested) {
      d.num_heads = from.integer({"num_heads", "n_heads", "index_n_heads"}, {}, {1, 1024});
      d.top_k = from.integer({"top_k", "topk", "index_topk"}, {}, {1, 1 << 20});
      from.only({"head_dim", "index_head_dim"}, 128, "index keys have 128 values");
    } else {
      d.num_heads = from.integer({"index_n_heads"}, {}, {1, 1024});
      d.top_k = from.integer({"index_topk"}, {}, {1, 1 << 20});
      from.only({"index_head_dim"}, 128, "index keys have 128 values");
    }
    return d;
  };
  DsaConfig dsa = f ? read(*f, true) : read(text, false);
  if (f && flat) {
    const DsaConfig other = read(text, false);
    if (other.num_heads != dsa.num_heads || other.top_k != dsa.top_k)
      text.reject("index_topk",
                  fmt::format("index_n_heads={}, index_topk={} disagree with dsa_config ({}, {}); remove "
                              "one of the spellings",
                              other.num_heads, other.top_k, dsa.num_heads, dsa.top_k));
  }
  text.only({"index_topk_freq"}, 1, "every DSA layer selects its own keys");
  if (const json::value* types = text.object().if_contains("indexer_types"); types && types->is_array())
    for (const json::value& type : types->get_array())
      if (type != "full")
        text.reject("indexer_types", "only \"full\" is supported: every DSA layer selects its own keys");

  if (f && f->has({"layers", "dsa_layers"})) {
    dsa.layers = read_layers(*f, {"layers", "dsa_layers"}, c.num_layers, cut);
    for (int layer : dsa.layers)
      if (c.is_kda[layer])
        f->reject("layers", fmt::format("layer {} is a KDA layer; DSA layers are MLA layers", layer + 1));
  } else {
    for (int layer = 0; layer < c.num_layers; ++layer)
      if (!c.is_kda[layer]) dsa.layers.push_back(layer);
  }
  c.notes.emplace_back(f ? "DSA is spelled dsa_config{…}"
                         : "DSA is spelled index_n_heads, index_head_dim, index_topk");
  if (f) {
    static constexpr std::string_view kKnown[] = {"layers",        "dsa_layers", "num_heads",      "n_heads",
                                                  "index_n_heads", "head_dim",   "index_head_dim", "top_k",
                                                  "topk",          "index_topk"};
    for (const auto& field : f->object())
      if (std::find(std::begin(kKnown), std::end(kKnown), std::string_view(field.key())) == std::end(kKnown))
        c.notes.push_back(fmt::format("{} is not read", f->full_name(field.key())));
  }
  if (!dsa.layers.empty()) c.dsa = std::move(dsa);
}

void read_tokens(const Fields& root, const Fields& text, ModelConfig& c) {
  const Range id{0, c.vocab_size - 1};
  const auto one = [&](std::string_view name) -> int64_t {
    const Fields& from = root.has({name}) ? root : text;
    return from.has({name}) ? from.integer({name}, {}, id) : -1;
  };
  c.bos_token_id = one("bos_token_id");
  c.pad_token_id = one("pad_token_id");
  const Fields& from = root.has({"eos_token_id"}) ? root : text;
  for (int64_t token : from.integers({"eos_token_id"})) {
    if (token < 0 || token >= c.vocab_size)
      from.reject("eos_token_id", fmt::format("{} is outside the vocabulary of {}", token, c.vocab_size));
    c.eos_token_ids.push_back(token);
  }
}

void read_vision(const Fields& root, ModelConfig& c) {
  const auto f = root.child("vision_config");
  if (!f) return;
  for (std::string_view name : {"attn_bias", "linear_bias", "patch_embed_proj_bias"})
    f->only({name}, false, "its bias tensors are not known");
  f->only({"norm_type"}, "rmsnorm", "its tensors are not known");
  f->only({"mlp_type"}, "mlp2", "its tensors are not known");
  f->only({"mm_projector_type"}, "patchmergerv2", "its tensors are not known");
  for (std::string_view name :
       {"vt_num_hidden_layers", "vt_hidden_size", "vt_intermediate_size", "qkv_hidden_size", "patch_size",
        "init_pos_emb_height", "init_pos_emb_width", "mm_hidden_size"})
    f->integer({name}, 1, {1, 1 << 20});
  f->integer({"text_hidden_size"}, c.hidden_size, {c.hidden_size, c.hidden_size});
  c.vision = std::make_shared<const boost::json::object>(f->object());
}

}  // namespace

bool ModelConfig::is_dsa(int layer) const {
  return dsa && std::binary_search(dsa->layers.begin(), dsa->layers.end(), layer);
}

ModelConfig parse_config(std::string_view text, const std::string& origin, const ConfigOverrides& overrides) {
  json::value value = parse_strict_json(text, origin, ErrorCode::kBadConfig);
  if (!value.is_object()) fail(ErrorCode::kBadConfig, "{}: the file must hold one JSON object", origin);
  json::object& object = value.get_object();
  apply_config_overrides(object, overrides);
  bool cut = false;  // lists that name layers end at an overridden num_hidden_layers
  for (const auto& [key, unused] : overrides)
    cut = cut || key == "num_hidden_layers" || key == "text_config.num_hidden_layers";

  ModelConfig c;
  const Fields root(object, overrides.empty() ? origin : origin + " with --override-config", "");
  read_family(root, c);
  const auto nested = root.child("text_config");
  const Fields& f = nested ? *nested : root;
  c.tensor_prefix = nested ? "language_model." : "";
  c.notes.emplace_back(nested ? "the text model is in text_config" : "the text model is at the top level");
  if (nested) {
    for (std::string_view name : {"dtype", "torch_dtype"})
      root.only({name}, "bfloat16", "weights and activations are bf16");
    f.only({"model_type"}, "kimi_linear", "the text model of this family is kimi_linear");
    for (const Fields* where : {&f, &root})
      if (where->has({"tie_word_embeddings"}))
        c.tie_word_embeddings = c.tie_word_embeddings || where->boolean({"tie_word_embeddings"}, false);
  } else {
    c.tie_word_embeddings = f.boolean({"tie_word_embeddings"}, false);
  }
  read_body(f, c);
  read_kda(f, c, cut);
  read_mla(f, c);
  read_moe(f, c);
  read_quantization(f, root, c);
  read_dsa(f, root, c, cut);
  read_tokens(root, f, c);
  if (nested) read_vision(root, c);
  return c;
}

}  // namespace perigee
