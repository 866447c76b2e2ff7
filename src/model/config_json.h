// JSON for files that must be exact: like boost::json::parse, but a key that occurs twice in one object is an
// error (the DOM alone would silently keep the last), and every error names the file.
#pragma once

#include <boost/json/value.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace perigee {

boost::json::value parse_strict_json(std::string_view text, const std::string& origin, ErrorCode code);

}  // namespace perigee
