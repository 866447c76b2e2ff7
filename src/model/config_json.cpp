// A pass over the text with an event parser finds duplicate keys and syntax errors; a second pass builds the
// DOM.
#include "model/config_json.h"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/parse.hpp>
#include <optional>
#include <unordered_set>
#include <vector>

namespace perigee {

namespace {

namespace json = boost::json;
using json::error_code;

// Keeps the keys of every open object.
struct KeyHandler {
  static constexpr std::size_t max_object_size = std::size_t(-1);
  static constexpr std::size_t max_array_size = std::size_t(-1);
  static constexpr std::size_t max_key_size = std::size_t(-1);
  static constexpr std::size_t max_string_size = std::size_t(-1);

  std::vector<std::unordered_set<std::string>> open;
  std::string key;
  std::optional<std::string> duplicate;

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) {
    open.emplace_back();
    return true;
  }
  bool on_object_end(std::size_t, error_code&) {
    open.pop_back();
    return true;
  }
  bool on_array_begin(error_code&) { return true; }
  bool on_array_end(std::size_t, error_code&) { return true; }
  bool on_key_part(json::string_view part, std::size_t, error_code&) {
    key.append(part.data(), part.size());
    return true;
  }
  bool on_key(json::string_view part, std::size_t, error_code& ec) {
    key.append(part.data(), part.size());
    if (!open.back().insert(key).second) {
      duplicate = key;
      ec = json::error::syntax;
      return false;
    }
    key.clear();
    return true;
  }
  bool on_string_part(json::string_view, std::size_t, error_code&) { return true; }
  bool on_string(json::string_view, std::size_t, error_code&) { return true; }
  bool on_number_part(json::string_view, error_code&) { return true; }
  bool on_int64(int64_t, json::string_view, error_code&) { return true; }
  bool on_uint64(uint64_t, json::string_view, error_code&) { return true; }
  bool on_double(double, json::string_view, error_code&) { return true; }
  bool on_bool(bool, error_code&) { return true; }
  bool on_null(error_code&) { return true; }
  bool on_comment_part(json::string_view, error_code&) { return true; }
  bool on_comment(json::string_view, error_code&) { return true; }
};

}  // namespace

json::value parse_strict_json(std::string_view text, const std::string& origin, ErrorCode code) {
  json::basic_parser<KeyHandler> keys{json::parse_options{}};
  error_code ec;
  const std::size_t used = keys.write_some(false, text.data(), text.size(), ec);
  if (const auto& key = keys.handler().duplicate)
    fail(code, "{}: the key \"{}\" occurs twice in one object; remove one of them", origin, *key);
  if (ec)
    fail(code, "{}: not valid JSON at byte {}: {}; correct the file or fetch it again", origin, used,
         ec.message());
  if (used != text.size())
    fail(code, "{}: {} bytes follow the JSON value; remove them", origin, text.size() - used);
  json::value value = json::parse(json::string_view(text.data(), text.size()), ec);
  if (ec) fail(code, "{}: not valid JSON: {}; correct the file or fetch it again", origin, ec.message());
  return value;
}

}  // namespace perigee
