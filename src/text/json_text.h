// JSON as Python's json.dumps(ensure_ascii=False) writes it: what the models saw in training, byte for byte.
#pragma once

#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace perigee {

enum class JsonSpacing { kCompact, kSpaced };  // "," ":" or ", " ": "

// Keys in their own order; see sort_keys. Floats as Python's repr, e.g. 1.0 and 1e-05.
std::string json_text(const boost::json::value& value, JsonSpacing spacing);
std::string json_string(std::string_view text);

// `value` with the keys of every object in code point order.
boost::json::value sort_keys(const boost::json::value& value);

// nullopt when `text` is not one JSON value, or nests deeper than 200.
std::optional<boost::json::value> parse_json(std::string_view text);

// `text` without white space at its ends, as Python's str.strip.
std::string_view strip(std::string_view text);

}  // namespace perigee
