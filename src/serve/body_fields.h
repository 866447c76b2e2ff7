// A request's JSON object, read field by field. Whatever is asked for counts as known, so that what is left
// can be reported; every complaint is an Error{kBadRequest} that names the field, its value and what is
// allowed.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace perigee::serve {

constexpr size_t kJsonDepth = 64;

// The body as one JSON object of at most kJsonDepth levels.
boost::json::object parse_body(std::string_view body);

// The first of the names, for a message: at most eight, as one JSON string.
std::string listed(const std::vector<std::string>& names);

class BodyFields {
 public:
  // `where` precedes the names of the fields of an inner object, e.g. "stream_options.".
  explicit BodyFields(const boost::json::object& object, std::string where = "")
      : object_(object), where_(std::move(where)) {}

  // Null counts as absent.
  const boost::json::value* find(std::string_view key);
  bool has(std::string_view key) { return find(key) != nullptr; }

  std::optional<bool> boolean(std::string_view key);
  std::optional<int64_t> integer(std::string_view key, int64_t low, int64_t high);
  std::optional<double> number(std::string_view key, double low, double high);
  std::optional<std::string> string(std::string_view key, size_t longest = 1 << 20);
  std::optional<std::string> choice(std::string_view key, const std::vector<std::string_view>& allowed);
  const boost::json::array* array(std::string_view key, size_t longest = SIZE_MAX);
  const boost::json::object* object(std::string_view key);
  // A string, or a list of strings.
  std::vector<std::string> strings(std::string_view key, size_t most);
  std::vector<int32_t> token_ids(std::string_view key, int64_t vocabulary, size_t most = SIZE_MAX);

  // Known, and taken only when it says what is so anyway.
  void unsupported(std::string_view key, std::string_view instead);
  void ignore(std::string_view key) { known_.insert(std::string(key)); }

  // The fields that nobody asked for.
  std::vector<std::string> unknown() const;

  [[noreturn]] void reject(std::string_view key, std::string_view expected);

 private:
  const boost::json::object& object_;
  std::string where_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace perigee::serve
