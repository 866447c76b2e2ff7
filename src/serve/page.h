// Files that are built into the binary: web/index.html and web/openapi.json.
#pragma once

#include <string_view>

namespace perigee::serve {

std::string_view page();
std::string_view openapi();

}  // namespace perigee::serve
