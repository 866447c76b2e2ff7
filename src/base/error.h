// The one exception type of perigee. It is thrown at the edges (files, flags, requests) with a message that
// names the object, the value found and the remedy; inside a step only a broken invariant throws.
#pragma once

#include <fmt/format.h>

#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

namespace perigee {

enum class ErrorCode {
  kUsage,        // a flag or argument; exit status 2
  kBadFile,      // a file that cannot be read, or whose bytes are wrong
  kBadConfig,    // a config.json that describes no model we can run
  kBadRequest,   // a prompt or sampling parameter
  kUnsupported,  // well-formed, but not something this build does
  kBusy,         // nothing wrong with it, but there is no room now; try again later
  kInternal,     // a broken invariant: a bug
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// An invariant of our own code; the message carries the source line.
inline void check(bool ok, const char* what, std::source_location at = std::source_location::current()) {
  if (!ok) throw Error(ErrorCode::kInternal, fmt::format("{}:{}: {}", at.file_name(), at.line(), what));
}

}  // namespace perigee
