// JSON for people and programs: numbers as the shortest decimals that read back as the same value.
#pragma once

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstdlib>
#include <string>

#include "text/json_text.h"

namespace perigee::cli {

// The shortest decimal of an fp32, as a JSON number; null when it is not finite.
inline boost::json::value json_number(float x) {
  if (!std::isfinite(x)) return nullptr;
  return std::strtod(fmt::format("{}", x).c_str(), nullptr);
}

// A value as text on one line.
inline std::string json_text(const boost::json::value& v) {
  return perigee::json_text(v, JsonSpacing::kCompact);
}

}  // namespace perigee::cli
