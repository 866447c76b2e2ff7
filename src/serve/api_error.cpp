#include "serve/api_error.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cctype>

#include "serve/http_text.h"
#include "text/json_text.h"

namespace perigee::serve {

namespace json = boost::json;

int http_status(const Error& error) {
  if (dynamic_cast<const NotFound*>(&error)) return 404;
  switch (error.code()) {
    case ErrorCode::kBadRequest:
    case ErrorCode::kUnsupported:
      return 400;
    case ErrorCode::kBusy:
      return 429;
    default:
      return 500;
  }
}

namespace {

std::string_view type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    case 501:
      return "not_implemented_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

json::value code_of(int status) {
  switch (status) {
    case 401:
      return "invalid_api_key";
    case 404:
      return "not_found";
    case 429:
      return "rate_limit_exceeded";
    default:
      return nullptr;
  }
}

// "top_p is 3; …" → "top_p"; null for a message that begins with a plain word.
json::value param_of(std::string_view message) {
  static constexpr std::string_view kPlain[] = {"the", "a", "an", "this", "no", "not", "both", "too", "one"};
  const size_t end = std::find_if(message.begin(), message.end(),
                                  [](char c) {
                                    return !(std::islower(static_cast<unsigned char>(c)) ||
                                             std::isdigit(static_cast<unsigned char>(c)) || c == '_' ||
                                             c == '.' || c == '[' || c == ']');
                                  }) -
                     message.begin();
  std::string_view word = message.substr(0, end);
  if (word.empty() || end == message.size() || message[end] != ' ' ||
      std::find(std::begin(kPlain), std::end(kPlain), word) != std::end(kPlain))
    return nullptr;
  return json::string(word.data(), word.size());
}

}  // namespace

std::string error_body(int status, std::string_view message) {
  if (message.empty()) message = reason_phrase(status);
  const json::value body = {{"error",
                             {{"message", json::string(message.data(), message.size())},
                              {"type", json::string_view(type_of(status).data(), type_of(status).size())},
                              {"param", status == 400 ? param_of(message) : json::value(nullptr)},
                              {"code", code_of(status)}}}};
  return json_text(body, JsonSpacing::kCompact);
}

}  // namespace perigee::serve
