// Errors as OpenAI's API words them.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace perigee::serve {

// A model or another named thing that is not there: 404.
class NotFound : public Error {
 public:
  explicit NotFound(const std::string& message) : Error(ErrorCode::kBadRequest, message) {}
};

int http_status(const Error& error);

// {"error": {"message", "type", "param", "code"}}. `param` is the field that the message begins with.
std::string error_body(int status, std::string_view message);

}  // namespace perigee::serve
