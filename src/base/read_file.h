// Reading a small text file whole: configs, vocabularies, tool lists, eval suites.
#pragma once

#include <cstddef>
#include <string>

#include "base/error.h"

namespace perigee {

inline constexpr size_t kMaxTextFile = size_t{64} << 20;  // bytes

// The bytes of `path`, which may be a pipe. Throws Error{code} when it cannot be read or holds more than
// kMaxTextFile; the message begins with `label`, or with the path where there is none.
std::string read_file(const std::string& path, ErrorCode code = ErrorCode::kBadFile,
                      const std::string& label = "");

}  // namespace perigee
