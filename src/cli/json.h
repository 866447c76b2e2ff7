// JSON for people and programs: numbers as the shortest decimals that read back as the same value.
#pragma once

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstdlib>
#include <string>

namespace perigee::cli {

// The shortest decimal of an fp32, as a JSON number; null when it is not finite.
inline boost::json::value json_number(float x) {
  if (!std::isfinite(x)) return nullptr;
  return std::strtod(fmt::format("{}", x).c_str(), nullptr);
}

// An object, array or value as text on one line.
inline std::string json_text(const boost::json::value& v) {
  std::string out;
  if (v.is_object()) {
    for (const auto& [key, value] : v.as_object()) {
      out += (out.empty() ? "" : ",") + boost::json::serialize(key) + ":" + json_text(value);
    }
    return "{" + out + "}";
  }
  if (v.is_array()) {
    for (const auto& value : v.as_array()) out += (out.empty() ? "" : ",") + json_text(value);
    return "[" + out + "]";
  }
  return v.is_double() ? fmt::format("{}", v.as_double()) : boost::json::serialize(v);
}

}  // namespace perigee::cli
