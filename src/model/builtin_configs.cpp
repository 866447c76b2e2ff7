#include "model/builtin_configs.h"

#include "model/config.h"

namespace perigee {

std::vector<std::string> builtin_config_names() {
  std::vector<std::string> out;
  for (int i = 0; i < kBuiltinConfigCount; ++i) out.emplace_back(kBuiltinConfigs[i].name);
  return out;
}

std::optional<std::string_view> builtin_config_json(std::string_view name) {
  for (int i = 0; i < kBuiltinConfigCount; ++i)
    if (kBuiltinConfigs[i].name == name) return kBuiltinConfigs[i].json;
  return std::nullopt;
}

}  // namespace perigee
