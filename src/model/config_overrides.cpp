#include "model/config_overrides.h"

#include <algorithm>
#include <array>
#include <boost/json/parse.hpp>

#include "base/error.h"
#include "base/spelling.h"

namespace perigee {

namespace {

namespace json = boost::json;

// Fields that a config may leave out; an override may add them.
constexpr std::array<std::string_view, 14> kOptionalFields = {"tie_word_embeddings",
                                                              "attn_res_block_size",
                                                              "routed_expert_hidden_size",
                                                              "latent_moe_use_norm",
                                                              "moe_renormalize",
                                                              "mla_use_output_gate",
                                                              "mla_use_nope",
                                                              "routed_scaling_factor",
                                                              "num_shared_experts",
                                                              "max_position_embeddings",
                                                              "bos_token_id",
                                                              "pad_token_id",
                                                              "eos_token_id",
                                                              "q_lora_rank"};

json::value scalar(const std::string& text) {
  boost::json::error_code ec;
  json::value value = json::parse(text, ec);
  if (ec) return json::value(text);  // a bare word is a string
  if (value.is_object() || value.is_array())
    fail(ErrorCode::kUsage,
         "--override-config: {} is not a scalar; only numbers, true, false, null and words are", text);
  return value;
}

json::object* object_in(json::object* parent, std::string_view name) {
  if (!parent) return nullptr;
  json::value* child = parent->if_contains(json::string_view(name.data(), name.size()));
  return child ? child->if_object() : nullptr;
}

std::string nearest(const std::vector<json::object*>& places, std::string_view key) {
  std::vector<std::string> known;
  for (const json::object* o : places)
    for (const auto& field : *o) known.emplace_back(field.key());
  known.insert(known.end(), kOptionalFields.begin(), kOptionalFields.end());
  return nearest_word(key, known);
}

}  // namespace

ConfigOverrides parse_config_overrides(std::string_view text) {
  ConfigOverrides out;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == item.size())
      fail(ErrorCode::kUsage, "--override-config: \"{}\" is not KEY=VALUE; write e.g. num_hidden_layers=4",
           item);
    out.emplace_back(item.substr(0, equals), item.substr(equals + 1));
  }
  return out;
}

void apply_config_overrides(json::object& root, const ConfigOverrides& overrides) {
  for (const auto& [key, value] : overrides) {
    // `text` is looked up anew each time: adding a field may move the objects of `root`.
    json::object* text = object_in(&root, "text_config");
    if (!text) text = &root;
    std::vector<json::object*> places{text};
    if (text != &root) places.push_back(&root);
    for (std::string_view name : {"linear_attn_config", "dsa_config"})
      if (json::object* o = object_in(text, name)) places.push_back(o);
    if (json::object* o = object_in(&root, "vision_config")) places.push_back(o);

    std::string_view leaf = key;
    if (const size_t dot = key.rfind('.'); dot != std::string::npos) {
      json::object* at = &root;
      for (std::string_view rest = std::string_view(key).substr(0, dot); !rest.empty();) {
        const size_t end = rest.find('.');
        const std::string_view name = rest.substr(0, end);
        rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
        json::object* next = object_in(at, name);
        if (!next && at == &root) next = object_in(text, name);
        if (!next)
          fail(ErrorCode::kUsage, "--override-config: {}: the config has no object \"{}\"", key, name);
        at = next;
      }
      places = {at};
      leaf = std::string_view(key).substr(dot + 1);
    }
    const json::string_view name(leaf.data(), leaf.size());
    const auto holder =
        std::find_if(places.begin(), places.end(), [&](const json::object* o) { return o->contains(name); });
    if (holder != places.end()) {
      json::value& field = (**holder)[name];
      if (field.is_object() || field.is_array())
        fail(ErrorCode::kUsage, "--override-config: {} is not a scalar field and cannot be replaced", key);
      field = scalar(value);
    } else if (std::find(kOptionalFields.begin(), kOptionalFields.end(), leaf) != kOptionalFields.end()) {
      (*places.front())[name] = scalar(value);
    } else {
      fail(ErrorCode::kUsage, "--override-config: the config has no field \"{}\"; the nearest is \"{}\"", key,
           nearest(places, leaf));
    }
  }
}

}  // namespace perigee
