// Numbers as JSON carries them: an fp32 as the shortest decimal that reads back as the same fp32.
#pragma once

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstdlib>
#include <string>

namespace perigee::cli {

inline boost::json::value json_number(float x) {
  if (!std::isfinite(x)) return nullptr;
  return std::strtod(fmt::format("{}", x).c_str(), nullptr);
}

}  // namespace perigee::cli
