#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <iterator>

#include "base/error.h"
#include "text/grammar_sources.h"
#include "text/schema_keywords.h"

namespace perigee {

namespace json = boost::json;

namespace {

class Relaxer {
 public:
  explicit Relaxer(std::vector<std::string>& dropped) : dropped_(dropped) {}

  json::value relax(const json::value& schema, const std::string& where) {
    const json::object* given = schema.if_object();
    if (!given) {
      if (schema != true) dropped_.push_back(where);
      return true;
    }
    json::object o = *given;
    if (const json::value* one = o.if_contains("oneOf"); one && !o.contains("anyOf")) {
      json::value choices = *one;       // a copy: a new key may move what `one` points to
      o["anyOf"] = std::move(choices);  // what one of them takes, any of them takes
      drop(o, "oneOf", where);
    }
    for (const char* key : kUnenforcedKeywords)
      if (const json::value* value = o.if_contains(key); value && *value != false) drop(o, key, where);
    drop_beside(o, where);
    for (const char* key : {"properties", "$defs", "definitions"})
      if (json::value* inner = o.if_contains(key); inner && inner->is_object())
        for (auto& property : inner->get_object())
          property.value() =
              relax(property.value(), fmt::format("{}/{}/{}", where, key, std::string_view(property.key())));
    for (const char* key : {"items", "additionalProperties"})
      if (json::value* inner = o.if_contains(key); inner && !inner->is_bool())
        *inner = relax(*inner, where + "/" + key);
    for (const char* key : {"anyOf", "allOf"})
      if (json::value* list = o.if_contains(key); list && list->is_array())
        for (size_t i = 0; i < list->get_array().size(); ++i)
          list->get_array()[i] = relax(list->get_array()[i], fmt::format("{}/{}/{}", where, key, i));
    return o;
  }

 private:
  void drop(json::object& o, std::string_view key, const std::string& where) {
    dropped_.push_back(fmt::format("{}/{}", where, key));
    o.erase(json::string_view(key.data(), key.size()));
  }

  void drop_beside(json::object& o, const std::string& where) {
    if (const json::value* all = o.if_contains("allOf");
        all && all->is_array() && all->get_array().size() > 1)
      drop(o, "allOf", where);
    for (const char* key : {"$ref", "const", "enum", "anyOf", "allOf"}) {
      if (!o.contains(key)) continue;
      for (const char* other : kCombinedKeywords) {
        const bool filtered = std::string_view(other) == "type" && (key[0] == 'c' || key[0] == 'e');
        if (std::string_view(other) != key && !filtered && o.contains(other)) drop(o, other, where);
      }
      return;
    }
    const json::value* pattern = o.if_contains("pattern");
    if (!pattern || !pattern->is_string()) return;
    try {
      Grammar scratch;
      regular_expression(scratch, std::string_view(pattern->get_string()), any_ascii());
      for (const char* key : {"minLength", "maxLength"})
        if (o.contains(key)) drop(o, key, where);
    } catch (const Error&) {  // what the expressions here cannot say
      drop(o, "pattern", where);
    }
  }

  std::vector<std::string>& dropped_;
};

}  // namespace

json::value relaxed_schema(const json::value& schema, const std::string& where,
                           std::vector<std::string>& dropped) {
  return Relaxer(dropped).relax(schema, where);
}

}  // namespace perigee
