#include <algorithm>
#include <boost/json.hpp>
#include <map>

#include "base/error.h"
#include "text/grammar_sources.h"
#include "text/json_text.h"
#include "text/schema_keywords.h"

namespace perigee {

namespace json = boost::json;

namespace {

using Sequence = Grammar::Sequence;
using Symbol = Grammar::Symbol;

constexpr int kMostDigits = 18, kMostSpaces = 32, kLongest = 16384;

ByteSet range(int low, int high) {
  ByteSet set;
  for (int byte = low; byte <= high; ++byte) set.set(static_cast<size_t>(byte));
  return set;
}

class JsonRules {
 public:
  explicit JsonRules(Grammar& grammar) : g_(grammar) {
    space_ = g_.choice(
        {{}, g_.literal(" "), join({g_.literal("\n"), {g_.repeat(g_.literal(" "), 0, kMostSpaces)}})});
    const ByteSet hex = range('0', '9') | range('a', 'f') | range('A', 'F');
    ByteSet escapes;
    for (const char c : std::string_view("\"\\/bfnrt")) escapes.set(static_cast<uint8_t>(c));
    string_character_ =
        g_.choice({{character(g_, plain_json_ascii())},
                   join({g_.literal("\\"), {g_.bytes(escapes)}}),
                   join({g_.literal("\\u"), {g_.bytes(hex), g_.bytes(hex), g_.bytes(hex), g_.bytes(hex)}})});
    string_ = quoted({g_.repeat({string_character_}, 0, -1)});
    const Symbol digit = g_.bytes(range('0', '9'));
    const Symbol minus = g_.optional(g_.literal("-"));
    const Symbol natural =
        g_.choice({g_.literal("0"), {g_.bytes(range('1', '9')), g_.repeat({digit}, 0, kMostDigits - 1)}});
    integer_ = g_.choice({{minus, natural}});
    ByteSet e, sign;
    e.set('e').set('E');
    sign.set('+').set('-');
    number_ = g_.choice(
        {{minus, natural, g_.optional(join({g_.literal("."), {g_.repeat({digit}, 1, kMostDigits)}})),
          g_.optional({g_.bytes(e), g_.optional({g_.bytes(sign)}), g_.repeat({digit}, 1, 3)})}});
    // A value refers to itself through arrays and objects.
    value_ = g_.new_rule();
    object_ = object_of({}, Grammar::rule(value_), 0);
    for (const Symbol& one : {object_, array_of(Grammar::rule(value_), 0, -1), string_, number_})
      g_.add(value_, {one});
    for (const char* word : {"true", "false", "null"}) g_.add(value_, g_.literal(word));
  }

  struct Member {
    std::string key;
    Symbol value;
    bool required;
  };

  Symbol quoted(const Sequence& inside) {
    return g_.choice({join({g_.literal("\""), inside, g_.literal("\"")})});
  }

  // Named members in their order; when there are none, any members with values of `others`, at least `least`.
  Symbol object_of(const std::vector<Member>& members, std::optional<Symbol> others, int least) {
    const Sequence comma = join({g_.literal(","), {space_}});
    const Sequence colon = join({g_.literal(":"), {space_}});
    Sequence inside;
    if (members.empty() && others) {
      const Sequence member = join({{string_}, colon, {*others}});
      const Symbol many = g_.choice(
          {join({member, {g_.repeat(join({comma, member}), std::max(0, least - 1), -1)}, {space_}})});
      inside = least > 0 ? Sequence{many} : Sequence{g_.optional({many})};
    } else {
      // What may follow once a member stands, and while none does: from the last member to the first.
      Sequence after = {space_}, before = {};
      for (auto m = members.rbegin(); m != members.rend(); ++m) {
        const Sequence member = join({g_.literal(json_string(m->key)), colon, {m->value}});
        const Sequence with_comma = join({comma, member, after}), first = join({member, after});
        after = {m->required ? g_.choice({with_comma}) : g_.choice({with_comma, after})};
        before = {m->required ? g_.choice({first}) : g_.choice({first, before})};
      }
      inside = before;
    }
    return g_.choice({join({g_.literal("{"), {space_}, inside, g_.literal("}")})});
  }

  Symbol array_of(const Symbol& item, int least, int most) {
    if (most == 0) return g_.choice({g_.literal("[]")});
    const Sequence more = join({g_.literal(","), {space_}, {item}});
    const Symbol items =
        g_.choice({{item, g_.repeat(more, std::max(0, least - 1), most < 0 ? -1 : most - 1), space_}});
    return g_.choice(
        {join({g_.literal("["), {space_}, {least > 0 ? items : g_.optional({items})}, g_.literal("]")})});
  }

  Grammar& g_;
  Symbol space_, string_character_, string_, integer_, number_, object_;
  int32_t value_ = 0;
};

[[noreturn]] void reject(const std::string& where, std::string_view why) {
  fail(ErrorCode::kBadRequest, "the JSON schema at {} {}", where, why);
}

// Whether a value is of a type, or of one in a list of types; of any without one.
bool is_of_type(const json::value& v, const json::value* type) {
  if (!type) return true;
  if (const json::array* list = type->if_array())
    return std::any_of(list->begin(), list->end(),
                       [&](const json::value& one) { return is_of_type(v, &one); });
  if (!type->is_string()) return false;
  const std::string_view name = type->get_string();
  const bool whole = v.is_int64() || v.is_uint64();
  if (name == "integer") return whole;
  if (name == "number") return whole || v.is_double();
  if (name == "string") return v.is_string();
  if (name == "boolean") return v.is_bool();
  if (name == "null") return v.is_null();
  if (name == "array") return v.is_array();
  return name == "object" && v.is_object();
}

// Beside a keyword that says all of what the value is, others that would narrow it are not combined with
// it.
void check_beside(const json::object& o, const std::string_view key, const std::string& where) {
  for (const char* other : kCombinedKeywords) {
    const bool filtered = std::string_view(other) == "type" && (key == "const" || key == "enum");
    if (other != key && !filtered && o.contains(other))
      reject(where, fmt::format("has {} beside {}, which is not supported; merge them", other, key));
  }
}

class SchemaReader {
 public:
  SchemaReader(Grammar& grammar, const json::value& root) : g_(grammar), rules_(grammar), root_(root) {}

  Symbol read(const json::value& schema, const std::string& where) {
    if (const auto known = made_.find(&schema); known != made_.end()) return Grammar::rule(known->second);
    const int32_t rule = g_.new_rule();
    made_.emplace(&schema, rule);
    g_.add(rule, {make(schema, where)});
    return Grammar::rule(rule);
  }

 private:
  static int count(const json::object& o, const char* key, int otherwise, const std::string& where) {
    const json::value* value = o.if_contains(key);
    if (!value) return otherwise;
    if (!value->is_int64() || value->get_int64() < 0 || value->get_int64() > kLongest)
      reject(where, fmt::format("has {} {}; expected a whole number from 0 to {}", key,
                                json_text(*value, JsonSpacing::kCompact).substr(0, 40), kLongest));
    return static_cast<int>(value->get_int64());
  }

  Symbol make(const json::value& schema, const std::string& where) {
    if (schema.is_bool() && schema.get_bool()) return Grammar::rule(rules_.value_);
    const json::object* o = schema.if_object();
    if (!o) reject(where, "is neither an object nor true");
    check_keywords(*o, where);
    if (const json::value* ref = o->if_contains("$ref")) {
      check_beside(*o, "$ref", where);
      return reference(*ref, where);
    }
    if (const auto values = allowed_values(*o, where); !values.empty()) {
      std::vector<Sequence> alternatives;
      for (const json::value& v : values)
        alternatives.push_back(g_.literal(json_text(v, JsonSpacing::kSpaced)));
      return g_.choice(std::move(alternatives));
    }
    for (const char* key : {"anyOf", "allOf"}) {
      const json::value* list = o->if_contains(key);
      if (!list) continue;
      check_beside(*o, key, where);
      if (!list->is_array() || list->get_array().empty())
        reject(where, fmt::format("has {} that is not a list of schemas", key));
      if (key[1] == 'l' && list->get_array().size() > 1)
        reject(where, "has allOf of several schemas, which is not supported; merge them");
      std::vector<Sequence> alternatives;
      for (size_t i = 0; i < list->get_array().size(); ++i)
        alternatives.push_back({read(list->get_array()[i], fmt::format("{}/{}/{}", where, key, i))});
      return g_.choice(std::move(alternatives));
    }
    const json::value* type = o->if_contains("type");
    if (!type) {
      if (o->contains("properties")) return of_type("object", *o, where);
      if (o->contains("items")) return of_type("array", *o, where);
      if (o->contains("pattern") || o->contains("minLength") || o->contains("maxLength"))
        return of_type("string", *o, where);
      return Grammar::rule(rules_.value_);
    }
    if (type->is_string()) return of_type(std::string(type->get_string()), *o, where);
    if (!type->is_array() || type->get_array().empty())
      reject(where, "has a type that is neither a name nor a list of names");
    std::vector<Sequence> alternatives;
    for (const json::value& one : type->get_array()) {
      if (!one.is_string()) reject(where, "has a type that is neither a name nor a list of names");
      alternatives.push_back({of_type(std::string(one.get_string()), *o, where)});
    }
    return g_.choice(std::move(alternatives));
  }

  // What would restrict the value, and cannot be kept.
  static void check_keywords(const json::object& o, const std::string& where) {
    for (const char* key : kUnenforcedKeywords)
      if (const json::value* value = o.if_contains(key); value && !(value->is_bool() && !value->get_bool()))
        reject(where, fmt::format("has {}, which cannot be enforced; leave it out", key));
  }

  Symbol reference(const json::value& ref, const std::string& where) {
    const std::string pointer = ref.is_string() ? std::string(ref.get_string()) : "";
    if (!pointer.starts_with('#')) reject(where, "has a $ref that is not to a place in this schema (#/…)");
    boost::system::error_code error;
    const json::value* target = root_.find_pointer(pointer.substr(1), error);
    if (!target) reject(where, fmt::format("refers to {}, which is not there", pointer));
    return read(*target, pointer);
  }

  Symbol of_type(const std::string& type, const json::object& o, const std::string& where) {
    if (type == "null") return g_.choice({g_.literal("null")});
    if (type == "boolean") return g_.choice({g_.literal("true"), g_.literal("false")});
    if (type == "integer") return rules_.integer_;
    if (type == "number") return rules_.number_;
    if (type == "string") return string(o, where);
    if (type == "array") {
      const json::value* items = o.if_contains("items");
      const int least = count(o, "minItems", 0, where), most = count(o, "maxItems", -1, where);
      if (most >= 0 && least > most) reject(where, "has minItems above maxItems");
      return rules_.array_of(items ? read(*items, where + "/items") : Grammar::rule(rules_.value_), least,
                             most);
    }
    if (type == "object") return object(o, where);
    reject(where, fmt::format(
                      "has the type \"{}\"; expected object, array, string, number, integer, boolean or null",
                      type));
  }

  Symbol string(const json::object& o, const std::string& where) {
    if (const json::value* pattern = o.if_contains("pattern")) {
      if (!pattern->is_string()) reject(where, "has a pattern that is not a string");
      if (o.contains("minLength") || o.contains("maxLength"))
        reject(where,
               "has a pattern beside a length, which cannot both be kept; say the length in the pattern");
      const std::string_view text(pattern->get_string());
      // JSON Schema's patterns match anywhere; ours match all, which is narrower only without anchors.
      return rules_.quoted({regular_expression(g_, text, plain_json_ascii())});
    }
    const int least = count(o, "minLength", 0, where), most = count(o, "maxLength", -1, where);
    if (most >= 0 && least > most) reject(where, "has minLength above maxLength");
    if (least == 0 && most < 0) return rules_.string_;
    return rules_.quoted({g_.repeat({rules_.string_character_}, least, most)});
  }

  Symbol object(const json::object& o, const std::string& where) {
    std::vector<std::string> required;
    if (const json::value* list = o.if_contains("required")) {
      if (!list->is_array()) reject(where, "has required that is not a list of names");
      for (const json::value& name : list->get_array()) {
        if (!name.is_string()) reject(where, "has required that is not a list of names");
        required.emplace_back(name.get_string());
      }
    }
    std::vector<JsonRules::Member> members;
    if (const json::value* properties = o.if_contains("properties")) {
      if (!properties->is_object()) reject(where, "has properties that are not an object");
      for (const auto& property : properties->get_object()) {
        const std::string key(property.key());
        const auto at = std::find(required.begin(), required.end(), key);
        members.push_back({key, read(property.value(), where + "/properties/" + key), at != required.end()});
        if (at != required.end()) required.erase(at);
      }
    }
    const json::value* more = o.if_contains("additionalProperties");
    const bool closed = more && more->is_bool() && !more->get_bool();
    for (const std::string& name : required) {  // required, and described nowhere
      if (closed) reject(where, fmt::format("requires \"{}\", which its properties lack", name));
      members.push_back({name, Grammar::rule(rules_.value_), true});
    }
    std::optional<Symbol> others;
    if (!closed)
      others = more && more->is_object() ? read(*more, where + "/additionalProperties")
                                         : Grammar::rule(rules_.value_);
    return rules_.object_of(members, others, 0);
  }

  Grammar& g_;
  JsonRules rules_;
  const json::value& root_;
  std::map<const json::value*, int32_t> made_;
};

}  // namespace

ByteSet any_ascii() { return range(0, 127); }

ByteSet plain_json_ascii() {
  ByteSet set = range(0x20, 127);
  return set.reset('"').reset('\\');
}

Symbol character(Grammar& g, const ByteSet& ascii) {
  const Symbol tail = g.bytes(range(0x80, 0xBF));
  // The second byte's ranges leave out overlong forms, surrogates and what lies above U+10FFFF.
  return g.choice({{g.bytes(ascii)},
                   {g.bytes(range(0xC2, 0xDF)), tail},
                   {g.bytes(range(0xE0, 0xE0)), g.bytes(range(0xA0, 0xBF)), tail},
                   {g.bytes(range(0xE1, 0xEC) | range(0xEE, 0xEF)), tail, tail},
                   {g.bytes(range(0xED, 0xED)), g.bytes(range(0x80, 0x9F)), tail},
                   {g.bytes(range(0xF0, 0xF0)), g.bytes(range(0x90, 0xBF)), tail, tail},
                   {g.bytes(range(0xF1, 0xF3)), tail, tail, tail},
                   {g.bytes(range(0xF4, 0xF4)), g.bytes(range(0x80, 0x8F)), tail, tail}});
}

Symbol any_json(Grammar& grammar, bool object_only) {
  const JsonRules rules(grammar);
  return object_only ? rules.object_ : Grammar::rule(rules.value_);
}

std::vector<json::value> allowed_values(const json::object& schema, const std::string& where) {
  std::vector<json::value> out;
  for (const char* key : {"const", "enum"}) {
    const json::value* values = schema.if_contains(key);
    if (!values) continue;
    check_beside(schema, key, where);
    const json::array one{*values};
    const json::array* all = key[0] == 'c' ? &one : values->if_array();
    if (!all || all->empty()) reject(where, "has an enum that is not a list of values");
    for (const json::value& v : *all) {
      if (is_of_type(v, schema.if_contains("type"))) out.push_back(v);
    }
    if (out.empty()) reject(where, fmt::format("has {} whose values are not of its type", key));
    break;
  }
  return out;
}

Symbol json_schema(Grammar& grammar, const json::value& schema, const json::value& root) {
  return SchemaReader(grammar, root).read(schema, "#");
}

}  // namespace perigee
