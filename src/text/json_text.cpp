#include "text/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cstring>
#include <vector>

#include "text/long_input_guard.h"
#include "text/utf8.h"

namespace perigee {
namespace {

namespace json = boost::json;

void append_string(std::string_view text, std::string& out) {
  out += '"';
  for (char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<uint8_t>(c) < 0x20)
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else
          out += c;
    }
  }
  out += '"';
}

// The shortest digits that read back as `x`, with an exponent below 1e-4 and from 1e16 on.
void append_double(double x, std::string& out) {
  char buffer[40];
  const auto format = [&](std::chars_format how) {
    return std::string_view(buffer,
                            static_cast<size_t>(std::to_chars(buffer, buffer + 40, x, how).ptr - buffer));
  };
  std::string_view digits = format(std::chars_format::scientific);
  const size_t mark = digits.find('e') + 1;
  int exponent = 0;
  std::from_chars(digits.data() + mark + (digits[mark] == '+'), digits.data() + digits.size(), exponent);
  const bool fixed = exponent >= -4 && exponent < 16;
  if (fixed) digits = format(std::chars_format::fixed);
  out += digits;
  if (fixed && digits.find('.') == std::string_view::npos) out += ".0";
}

void append(const json::value& value, JsonSpacing spacing, std::string& out) {
  const bool compact = spacing == JsonSpacing::kCompact;
  switch (value.kind()) {
    case json::kind::null:
      out += "null";
      break;
    case json::kind::bool_:
      out += value.get_bool() ? "true" : "false";
      break;
    case json::kind::int64:
      out += std::to_string(value.get_int64());
      break;
    case json::kind::uint64:
      out += std::to_string(value.get_uint64());
      break;
    case json::kind::double_:
      append_double(value.get_double(), out);
      break;
    case json::kind::string:
      append_string(value.get_string(), out);
      break;
    case json::kind::array: {
      std::string_view separator;
      out += '[';
      for (const json::value& item : value.get_array()) {
        out += separator;
        append(item, spacing, out);
        separator = compact ? "," : ", ";
      }
      out += ']';
      break;
    }
    case json::kind::object: {
      std::string_view separator;
      out += '{';
      for (const auto& item : value.get_object()) {
        out += separator;
        append_string(item.key(), out);
        out += compact ? ":" : ": ";
        append(item.value(), spacing, out);
        separator = compact ? "," : ", ";
      }
      out += '}';
      break;
    }
  }
}

}  // namespace

std::string json_text(const json::value& value, JsonSpacing spacing) {
  std::string out;
  append(value, spacing, out);
  return out;
}

std::string json_string(std::string_view text) {
  std::string out;
  append_string(text, out);
  return out;
}

json::value sort_keys(const json::value& value) {
  if (const json::array* array = value.if_array()) {
    json::array out;
    for (const json::value& item : *array) out.push_back(sort_keys(item));
    return out;
  }
  const json::object* object = value.if_object();
  if (!object) return value;
  std::vector<const json::key_value_pair*> items;
  for (const auto& item : *object) items.push_back(&item);
  // Bytes of UTF-8 order as the code points do.
  std::sort(items.begin(), items.end(), [](const auto* a, const auto* b) {
    const size_t n = std::min(a->key().size(), b->key().size());
    const int order = std::memcmp(a->key().data(), b->key().data(), n);
    return order != 0 ? order < 0 : a->key().size() < b->key().size();
  });
  json::object out;
  for (const auto* item : items) out.emplace(item->key(), sort_keys(item->value()));
  return out;
}

std::optional<json::value> parse_json(std::string_view text) {
  json::parse_options options;
  options.max_depth = 200;
  json::error_code error;
  json::value value = json::parse(json::string_view(text.data(), text.size()), error, {}, options);
  if (error) return std::nullopt;
  return value;
}

std::string_view strip(std::string_view text) {
  size_t begin = text.size(), end = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text.substr(at));
    if (step.kind != Utf8Step::kValid || !is_python_space(step.codepoint)) {
      begin = std::min(begin, at);
      end = at + step.length;
    }
    at += step.length;
  }
  return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

}  // namespace perigee
