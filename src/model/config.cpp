// load_config: finds the config of a folder, a file or a built-in name, and adds what generation_config.json
// says.
#include "model/config.h"

#include <algorithm>
#include <filesystem>

#include "base/read_file.h"
#include "model/config_fields.h"
#include "model/config_json.h"

namespace perigee {

namespace {

namespace fs = std::filesystem;

// Chat models stop at tokens that only generation_config.json names.
void merge_generation_config(const fs::path& path, ModelConfig& c) {
  if (!fs::exists(path)) return;
  const auto value = parse_strict_json(read_file(path.string()), path.string(), ErrorCode::kBadConfig);
  if (!value.is_object())
    fail(ErrorCode::kBadConfig, "{}: the file must hold one JSON object", path.string());
  const Fields f(value.get_object(), path.string(), "");
  for (int64_t token : f.integers({"eos_token_id"})) {
    if (token < 0 || token >= c.vocab_size)
      f.reject("eos_token_id", fmt::format("{} is outside the vocabulary of {}", token, c.vocab_size));
    if (std::find(c.eos_token_ids.begin(), c.eos_token_ids.end(), token) == c.eos_token_ids.end()) {
      c.eos_token_ids.push_back(token);
      c.notes.push_back(fmt::format("eos_token_id {} comes from generation_config.json", token));
    }
  }
}

}  // namespace

ModelConfig load_config(const std::string& model_or_name, const ConfigOverrides& overrides) {
  if (const auto text = builtin_config_json(model_or_name); text && !fs::exists(model_or_name))
    return parse_config(*text, "built-in " + model_or_name, overrides);
  const fs::path path = model_or_name;
  if (!fs::exists(path)) {
    fail(ErrorCode::kUsage, "{}: no such folder or file, and not a built-in config ({})", model_or_name,
         fmt::join(builtin_config_names(), ", "));
  }
  const bool folder = fs::is_directory(path);
  if (!folder && path.extension() == ".safetensors")
    fail(ErrorCode::kUsage, "{}: weights, not a config; give the folder they lie in", path.string());
  const fs::path file = folder ? path / "config.json" : path;
  if (!fs::exists(file))
    fail(ErrorCode::kBadConfig, "{}: the folder has no config.json; give a folder in Hugging Face layout",
         path.string());
  ModelConfig c = parse_config(read_file(file.string()), file.string(), overrides);
  if (folder) merge_generation_config(path / "generation_config.json", c);
  return c;
}

}  // namespace perigee
