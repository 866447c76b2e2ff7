// ModelConfig: what config.json says about a model of the Kimi-Linear / K3 / K3.1 family, checked and
// normalised to one spelling. Layer indices are 0-based here; the files count from 1.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/block_config.h"

namespace perigee {

enum class Family { kKimiLinear, kKimiK3, kKimiK31 };
struct ModelConfig {
  Family family = Family::kKimiLinear;
  std::string architecture;  // config.json's architectures[0]
  std::string
      tensor_prefix;  // of the text model's tensor names: "language_model." when the config has a text_config
  int hidden_size = 0;
  int num_layers = 0;
  int vocab_size = 0;
  int intermediate_size = 0;  // of the dense layers
  Activation activation = Activation::kSilu;
  float situ_beta = 4.0f;
  float situ_linear_beta = 25.0f;  // ≤ 0: the up half stays as it is
  float rms_norm_eps = 1e-5f;
  int64_t max_position_embeddings = 0;
  bool tie_word_embeddings = false;
  int attn_res_block_size = 0;  // 0: an ordinary residual stream
  KdaConfig kda;
  MlaConfig mla;
  std::optional<DsaConfig> dsa;
  MoeConfig moe;
  bool mxfp4_experts = false;
  std::vector<bool> is_kda;  // [num_layers]; the others are MLA
  int64_t bos_token_id = -1, pad_token_id = -1;
  std::vector<int64_t> eos_token_ids;
  std::shared_ptr<const boost::json::object>
      vision;                      // vision_config as it stands; its tensors are known, not run
  std::vector<std::string> notes;  // which spellings were read, for `inspect`

  bool is_dsa(int layer) const;
  bool is_moe(int layer) const { return layer >= moe.first_dense_layers && layer % moe.layer_freq == 0; }
  bool has_attn_res() const { return attn_res_block_size > 0; }
};

// Key=value pairs that replace scalar fields of config.json before it is read (--override-config); list
// fields that name layers are cut to num_hidden_layers.
using ConfigOverrides = std::vector<std::pair<std::string, std::string>>;
ConfigOverrides parse_config_overrides(std::string_view text);

// Reads config.json text; `origin` names it in errors. Throws Error{kBadConfig} naming field, value and
// remedy.
ModelConfig parse_config(std::string_view json, const std::string& origin,
                         const ConfigOverrides& overrides = {});

// A folder in Hugging Face layout (its config.json and generation_config.json), a config file, or a built-in
// name.
ModelConfig load_config(const std::string& model_or_name, const ConfigOverrides& overrides = {});

// The configs compiled into the binary: kimi-linear-48b-a3b, kimi-k3, kimi-k3.1-pro.
std::vector<std::string> builtin_config_names();
std::optional<std::string_view> builtin_config_json(std::string_view name);

}  // namespace perigee
