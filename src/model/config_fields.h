// Fields: typed, checked access to one JSON object of a config. Every getter takes all spellings of a field;
// two spellings that disagree, a wrong type and a value out of range are errors that name field, value and
// what is allowed.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace perigee {

struct Range {
  int64_t low = 1;
  int64_t high = int64_t{1} << 31;
  int64_t multiple = 1;
};

class Fields {
 public:
  using Names = std::initializer_list<std::string_view>;

  // `path` is put before field names in messages ("text_config.").
  Fields(const boost::json::object& object, std::string origin, std::string path)
      : object_(&object), origin_(std::move(origin)), path_(std::move(path)) {}

  // Null counts as absent everywhere: Hugging Face writes null for "unset".
  bool has(Names names) const { return find(names).value != nullptr; }
  int64_t integer(Names names, std::optional<int64_t> fallback, const Range& range) const;
  double number(Names names, std::optional<double> fallback, double low, double high) const;
  bool boolean(Names names, std::optional<bool> fallback) const;
  std::string text(Names names, std::optional<std::string> fallback) const;
  std::vector<int64_t> integers(Names names) const;  // a list, or one integer; empty when absent
  std::optional<Fields> child(std::string_view name) const;

  // A feature this engine does not have: the field must be absent or equal to the only value it runs.
  void only(Names names, const boost::json::value& allowed, std::string_view why) const;

  [[noreturn]] void reject(std::string_view name, std::string_view problem) const;
  const boost::json::object& object() const { return *object_; }
  std::string full_name(std::string_view name) const { return path_ + std::string(name); }

 private:
  struct Found {
    std::string name;  // the spelling that was found, else the first one
    const boost::json::value* value = nullptr;
  };
  Found find(Names names) const;

  const boost::json::object* object_;
  std::string origin_, path_;
};

}  // namespace perigee
