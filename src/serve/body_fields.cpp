#include "serve/body_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

#include "base/error.h"
#include "text/json_text.h"
#include "text/utf8.h"

namespace perigee::serve {

namespace json = boost::json;

namespace {

std::string shown(const json::value& value) {
  std::string text = json_text(value, JsonSpacing::kSpaced);
  if (text.size() > 80) text = replace_invalid_utf8(text.substr(0, 80)) + "…";
  return text;
}

// A number that is whole, also written as 3.0.
std::optional<int64_t> whole(const json::value& value) {
  if (value.is_int64()) return value.get_int64();
  if (value.is_double() && value.get_double() == std::floor(value.get_double()) &&
      std::fabs(value.get_double()) < 0x1p53)
    return static_cast<int64_t>(value.get_double());
  return std::nullopt;
}

}  // namespace

json::object parse_body(std::string_view body) {
  json::parse_options options;
  options.max_depth = kJsonDepth;
  json::error_code error;
  json::value value = json::parse(json::string_view(body.data(), body.size()), error, {}, options);
  if (error == json::error::too_deep)
    fail(ErrorCode::kBadRequest, "the body nests deeper than {} levels; flatten it", kJsonDepth);
  if (error) fail(ErrorCode::kBadRequest, "the body is not JSON ({}); send one JSON object", error.message());
  if (!value.is_object()) fail(ErrorCode::kBadRequest, "the body is not a JSON object; send one");
  return std::move(value.get_object());
}

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kMost = 8, kLongest = 128;
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i)
    out += (i ? ", " : "") + replace_invalid_utf8(names[i].substr(0, kLongest));
  if (names.size() > kMost) out += fmt::format(" and {} more", names.size() - kMost);
  return json_string(out);
}

const json::value* BodyFields::find(std::string_view key) {
  known_.insert(std::string(key));
  const json::value* value = object_.if_contains(json::string_view(key.data(), key.size()));
  return value && !value->is_null() ? value : nullptr;
}

void BodyFields::reject(std::string_view key, std::string_view expected) {
  const json::value* value = find(key);
  fail(ErrorCode::kBadRequest, "{}{} is {}; expected {}", where_, key,
       value ? shown(*value) : std::string("missing"), expected);
}

std::optional<bool> BodyFields::boolean(std::string_view key) {
  const json::value* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_bool()) reject(key, "true or false");
  return value->get_bool();
}

std::optional<int64_t> BodyFields::integer(std::string_view key, int64_t low, int64_t high) {
  const json::value* value = find(key);
  if (!value) return std::nullopt;
  const std::optional<int64_t> number = whole(*value);
  if (!number || *number < low || *number > high)
    reject(key, fmt::format("a whole number from {} to {}", low, high));
  return number;
}

std::optional<double> BodyFields::number(std::string_view key, double low, double high) {
  const json::value* value = find(key);
  if (!value) return std::nullopt;
  const double x = value->is_number() ? value->to_number<double>() : low - 1;
  if (!(x >= low && x <= high)) reject(key, fmt::format("a number from {} to {}", low, high));
  return x;
}

std::optional<std::string> BodyFields::string(std::string_view key, size_t longest) {
  const json::value* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_string()) reject(key, "a string");
  if (value->get_string().size() > longest)
    fail(ErrorCode::kBadRequest, "{}{} has {} bytes; at most {} are taken", where_, key,
         value->get_string().size(), longest);
  return std::string(value->get_string());
}

std::optional<std::string> BodyFields::choice(std::string_view key,
                                              const std::vector<std::string_view>& allowed) {
  const auto text = string(key);
  if (!text) return std::nullopt;
  for (std::string_view one : allowed)
    if (*text == one) return text;
  reject(key, fmt::format("one of {}", fmt::join(allowed, ", ")));
}

const json::array* BodyFields::array(std::string_view key, size_t longest) {
  const json::value* value = find(key);
  if (!value) return nullptr;
  if (!value->is_array()) reject(key, "a list");
  if (value->get_array().size() > longest)
    fail(ErrorCode::kBadRequest, "{}{} has {} entries; at most {} are taken", where_, key,
         value->get_array().size(), longest);
  return &value->get_array();
}

const json::object* BodyFields::object(std::string_view key) {
  const json::value* value = find(key);
  if (!value) return nullptr;
  if (!value->is_object()) reject(key, "an object");
  return &value->get_object();
}

std::vector<std::string> BodyFields::strings(std::string_view key, size_t most) {
  const json::value* value = find(key);
  if (!value) return {};
  if (value->is_string()) return {std::string(value->get_string())};
  std::vector<std::string> out;
  if (!value->is_array()) reject(key, "a string or a list of strings");
  for (const json::value& item : *array(key, most)) {
    if (!item.is_string()) reject(key, "a string or a list of strings");
    out.emplace_back(item.get_string());
  }
  return out;
}

std::vector<int32_t> BodyFields::token_ids(std::string_view key, int64_t vocabulary, size_t most) {
  const json::array* list = array(key, most);
  std::vector<int32_t> ids;
  if (!list) return ids;
  ids.reserve(list->size());
  for (size_t i = 0; i < list->size(); ++i) {
    const json::value& item = (*list)[i];
    const std::optional<int64_t> id = whole(item);
    if (!id || *id < 0 || *id >= vocabulary)
      fail(ErrorCode::kBadRequest, "{}{}[{}] is {}; expected a token id from 0 to {}", where_, key, i,
           shown(item), vocabulary - 1);
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

void BodyFields::unsupported(std::string_view key, std::string_view instead) {
  const json::value* value = find(key);
  const bool empty = !value || (value->is_array() && value->get_array().empty()) ||
                     (value->is_object() && value->get_object().empty()) ||
                     (value->is_bool() && !value->get_bool()) ||
                     (value->is_int64() && value->get_int64() == 0);
  if (!empty)
    fail(ErrorCode::kBadRequest, "{}{} is not supported: it is {}; {}", where_, key, shown(*value), instead);
}

std::vector<std::string> BodyFields::unknown() const {
  std::vector<std::string> names;
  for (const auto& field : object_)
    if (!known_.contains(std::string_view(field.key().data(), field.key().size())))
      names.push_back(where_ + std::string(field.key()));
  return names;
}

}  // namespace perigee::serve
