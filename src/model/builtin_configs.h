// The configs compiled into the binary; the array is generated from src/model/configs at build time.
#pragma once

#include <string_view>

namespace perigee {

struct BuiltinConfig {
  std::string_view name, json;
};

extern const BuiltinConfig kBuiltinConfigs[];
extern const int kBuiltinConfigCount;

}  // namespace perigee
