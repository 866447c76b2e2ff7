#include "text/chat_grammar_k3.h"

#include <algorithm>
#include <boost/json.hpp>

#include "base/error.h"
#include "text/grammar_sources.h"

namespace perigee {

namespace json = boost::json;

namespace {

using Sequence = Grammar::Sequence;
using Symbol = Grammar::Symbol;

constexpr int kLongestPreamble = 256;  // bytes before a call that must come
constexpr int kMostCalls = 128;

std::string escaped(std::string_view value) {
  std::string out;
  for (const char c : value) out += c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  return out;
}

class K3Grammar {
 public:
  K3Grammar(Grammar& grammar, const Vocabulary& vocabulary) : g_(grammar) {
    const auto id = [&](std::string_view name) { return vocabulary.control_id(name).value_or(-1); };
    open_ = id("<|open|>");
    close_ = id("<|close|>");
    sep_ = id("<|sep|>");
    ByteSet all;
    any_byte_ = g_.bytes(all.set());
    any_text_ = g_.repeat({any_byte_}, 0, -1);
  }

  void fill(const AnswerShape& shape) {
    Sequence head;
    if (shape.thinking) head = join({{any_text_}, close("think"), open("response")});
    const Sequence end = close("message");
    std::vector<Sequence> rests;
    if (!shape.must_call)
      rests.push_back(join({{shape.content.value_or(any_text_)}, close("response"), end}));
    if (!shape.tools.empty()) {
      const Symbol preamble = shape.must_call ? g_.repeat({any_byte_}, 0, kLongestPreamble)
                              : shape.content ? g_.choice({Sequence{}})
                                              : any_text_;
      rests.push_back(join({{preamble}, close("response"), {calls(shape)}, end}));
    }
    g_.add(0, join({head, {g_.choice(std::move(rests))}}));
  }

 private:
  Sequence tag(int32_t marker, std::string_view inside) {
    return join({{Grammar::control(marker)}, g_.literal(inside), {Grammar::control(sep_)}});
  }
  Sequence open(std::string_view inside) { return tag(open_, inside); }
  Sequence close(std::string_view name) { return tag(close_, name); }

  Symbol calls(const AnswerShape& shape) {
    ByteSet digits;
    for (char c = '0'; c <= '9'; ++c) digits.set(static_cast<uint8_t>(c));
    std::vector<Sequence> alternatives;
    for (const AnswerShape::Tool& tool : shape.tools)
      alternatives.push_back(join({{Grammar::control(open_)},
                                   g_.literal("call tool=\"" + escaped(tool.name) + "\" index=\""),
                                   {g_.repeat({g_.bytes(digits)}, 1, 3)},
                                   g_.literal("\""),
                                   {Grammar::control(sep_)},
                                   {arguments(tool)},
                                   close("call")}));
    const Symbol call = g_.choice(std::move(alternatives));
    const Symbol many = shape.one_call ? call : g_.repeat({call}, 1, kMostCalls);
    return g_.choice({join({open("tools"), {many}, close("tools")})});
  }

  // The declared arguments in their order, those required surely.
  Symbol arguments(const AnswerShape::Tool& tool) {
    const json::object* schema = tool.parameters ? tool.parameters->if_object() : nullptr;
    const json::value* properties = schema ? schema->if_contains("properties") : nullptr;
    Sequence all;
    if (properties && properties->is_object()) {
      const json::value* list = schema->if_contains("required");
      for (const auto& property : properties->get_object()) {
        const json::value key(property.key());
        const bool required =
            list && list->is_array() &&
            std::find(list->get_array().begin(), list->get_array().end(), key) != list->get_array().end();
        check_schema(tool, std::string(property.key()), property.value());
        std::vector<Sequence> forms;
        argument(std::string(property.key()), property.value(), *tool.parameters, forms);
        const Symbol one = g_.choice(std::move(forms));
        all.push_back(required ? one : g_.optional({one}));
      }
    }
    return g_.choice({std::move(all)});
  }

  // Refuses what the grammars cannot keep.
  static void check_schema(const AnswerShape::Tool& tool, const std::string& key, const json::value& schema) {
    try {
      Grammar scratch;
      json_schema(scratch, schema, *tool.parameters);
    } catch (const Error& error) {
      fail(error.code(), "the tool \"{}\", argument \"{}\": {}", tool.name, key, error.what());
    }
  }

  // <|open|>argument key="K" type="T"<|sep|>value<|close|>argument<|sep|>, in every form that it may take:
  // the value of a string is its text as it is. The schema is one that json_schema takes.
  void argument(const std::string& key, const json::value& schema, const json::value& root,
                std::vector<Sequence>& forms, int depth = 0) {
    const auto add = [&](std::string_view type, const Symbol& value) {
      forms.push_back(join({open("argument key=\"" + escaped(key) + "\" type=\"" + std::string(type) + "\""),
                            {value},
                            close("argument")}));
    };
    const json::object* o = schema.if_object();
    if (const json::value* ref = o ? o->if_contains("$ref") : nullptr) {
      constexpr int kLongestChain = 16;
      if (depth == kLongestChain)
        fail(ErrorCode::kBadRequest, "the argument \"{}\" has a $ref that leads to no schema; correct it",
             key);
      boost::system::error_code error;
      const json::value* target = root.find_pointer(ref->get_string().subview(1), error);
      return argument(key, *target, root, forms, depth + 1);
    }
    for (const char* combined : {"anyOf", "allOf"})
      if (const json::value* list = o ? o->if_contains(combined) : nullptr) {
        for (const json::value& one : list->get_array()) argument(key, one, root, forms, depth);
        return;
      }
    const std::vector<json::value> values =
        o ? allowed_values(*o, "argument " + key) : std::vector<json::value>();
    for (const json::value& one : values) {
      if (one.is_string())
        add("string", g_.choice({g_.literal(std::string_view(one.get_string()))}));
      else
        add(type_of(one), json_schema(g_, json::value(json::object{{"const", one}}), root));
    }
    if (!values.empty()) return;
    for (const std::string& type : types_of(o)) {
      json::object narrowed = o ? *o : json::object();
      narrowed["type"] = type;
      if (type == "string")
        add(type, text(narrowed));
      else
        add(type == "integer" ? "number" : type, json_schema(g_, json::value(std::move(narrowed)), root));
    }
  }

  // The text of a string, within what the schema says of it.
  Symbol text(const json::object& schema) {
    if (const json::value* pattern = schema.if_contains("pattern"))
      return regular_expression(g_, std::string_view(pattern->get_string()), any_ascii());
    const json::value *least = schema.if_contains("minLength"), *most = schema.if_contains("maxLength");
    if (!least && !most) return any_text_;
    return g_.repeat({character(g_, any_ascii())}, least ? static_cast<int>(least->get_int64()) : 0,
                     most ? static_cast<int>(most->get_int64()) : -1);
  }

  static std::string_view type_of(const json::value& value) {
    return value.is_number()   ? "number"
           : value.is_bool()   ? "boolean"
           : value.is_null()   ? "null"
           : value.is_array()  ? "array"
           : value.is_object() ? "object"
                               : "string";
  }
  static std::vector<std::string> types_of(const json::object* schema) {
    std::vector<std::string> out;
    const json::value* type = schema ? schema->if_contains("type") : nullptr;
    if (type && type->is_string()) out.emplace_back(type->get_string());
    if (type && type->is_array())
      for (const json::value& one : type->get_array())
        if (one.is_string()) out.emplace_back(one.get_string());
    if (out.empty()) out = {"string", "number", "boolean", "null", "object", "array"};
    return out;
  }

  Grammar& g_;
  int32_t open_, close_, sep_;
  Symbol any_byte_, any_text_;
};

}  // namespace

void k3_answer_grammar(Grammar& grammar, const Vocabulary& vocabulary, const AnswerShape& shape) {
  K3Grammar(grammar, vocabulary).fill(shape);
}

}  // namespace perigee
