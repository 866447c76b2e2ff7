#include "serve/structured_output.h"

#include <atomic>
#include <boost/json.hpp>

#include "base/error.h"
#include "text/grammar_record.h"
#include "text/grammar_sources.h"

namespace perigee::serve {

namespace json = boost::json;

namespace {

// One request's machine, and whether it gave up.
struct Shared {
  Shared(Grammar grammar, std::shared_ptr<const TokenTree> tokens, const std::vector<int32_t>& stops)
      : machine(std::move(grammar), std::move(tokens), stops), stop_ids(stops) {}
  GrammarMachine machine;
  std::vector<int32_t> stop_ids;
  std::atomic<bool> gave_up = false;
};

class FollowsGrammar : public TokenConstraint {
 public:
  // No state: the machine gave up, and the answer ends.
  FollowsGrammar(std::shared_ptr<Shared> shared, const GrammarMachine::State* state)
      : shared_(std::move(shared)), state_(state) {}

  const std::vector<int32_t>& allowed() const override {
    if (!state_) return shared_->stop_ids;
    try {
      return shared_->machine.allowed(state_);
    } catch (const std::exception&) {  // too many states: this request ends, the engine goes on
      shared_->gave_up = true;
      return shared_->stop_ids;
    }
  }
  std::shared_ptr<const TokenConstraint> after(int32_t token) const override {
    if (!state_) return nullptr;
    try {
      const GrammarMachine::State* next = shared_->machine.after(state_, token);
      return next ? std::make_shared<FollowsGrammar>(shared_, next) : nullptr;
    } catch (const std::exception&) {
      shared_->gave_up = true;
      return std::make_shared<FollowsGrammar>(shared_, nullptr);
    }
  }
  json::object record() const override {
    json::object out = grammar_record(shared_->machine.grammar());
    out["stop_ids"] = json::value_from(shared_->stop_ids);
    return out;
  }

 private:
  std::shared_ptr<Shared> shared_;
  const GrammarMachine::State* state_;
};

Grammar::Symbol choice_of(const json::value& list, Grammar& grammar) {
  std::vector<Grammar::Sequence> alternatives;
  if (list.is_array())
    for (const json::value& one : list.get_array()) {
      if (!one.is_string() || one.get_string().empty()) break;
      alternatives.push_back(grammar.literal(std::string_view(one.get_string())));
    }
  if (alternatives.empty() || alternatives.size() < list.get_array().size())
    fail(ErrorCode::kBadRequest, "structured_outputs.choice is not a list of texts; give at least one");
  return grammar.choice(std::move(alternatives));
}

// A value, or one as JSON text.
json::value value_of(std::string_view kind, const json::value& value) {
  if (!value.is_string()) return value;
  json::parse_options options;
  options.max_depth = kJsonDepth;
  boost::system::error_code error;
  json::value parsed = json::parse(value.get_string(), error, {}, options);
  if (error)
    fail(ErrorCode::kBadRequest, "structured_outputs.{} is a text that is not JSON ({}); give JSON", kind,
         error.message());
  return parsed;
}

Grammar::Symbol text_of(std::string_view kind, const json::value& value, Grammar& grammar,
                        const ServedModel& model) {
  if (kind == "json") {
    const json::value schema = value_of(kind, value);
    return json_schema(grammar, schema, schema);
  }
  if (kind == "structural_tag")
    return structural_tag(grammar, value_of(kind, value), model.tokenizer.vocabulary());
  if (kind == "choice") return choice_of(value, grammar);
  if (kind == "json_object") return any_json(grammar, true);
  if (!value.is_string()) fail(ErrorCode::kBadRequest, "structured_outputs.{} is not a string", kind);
  const std::string_view text(value.get_string());
  return kind == "regex" ? regular_expression(grammar, text, any_ascii()) : ebnf(grammar, text);
}

}  // namespace

std::optional<Grammar::Symbol> read_structured_outputs(BodyFields& body, Grammar& grammar,
                                                       const ServedModel& model) {
  std::optional<Grammar::Symbol> out;
  const auto take = [&](std::string_view kind, const json::value& value) {
    if (out)
      fail(ErrorCode::kBadRequest, "structured_outputs asks for several forms at once; give one of them");
    out = text_of(kind, value, grammar, model);
  };
  if (const json::object* object = body.object("structured_outputs")) {
    BodyFields fields(*object, "structured_outputs.");
    for (const char* kind : {"json", "regex", "choice", "grammar", "json_object", "structural_tag"})
      if (const json::value* value = fields.find(kind); value && *value != false) take(kind, *value);
    for (const char* key : {"disable_any_whitespace", "disable_fallback", "disable_additional_properties",
                            "whitespace_pattern"})
      fields.ignore(key);
    if (const auto unknown = fields.unknown(); !unknown.empty())
      fail(ErrorCode::kBadRequest,
           "{} is unknown; give json, regex, choice, grammar, json_object or structural_tag",
           unknown.front());
    if (!out)
      fail(ErrorCode::kBadRequest,
           "structured_outputs is empty; give json, regex, choice, grammar, json_object or structural_tag");
  }
  for (const auto& [key, kind] :
       {std::pair("guided_json", "json"), std::pair("guided_regex", "regex"),
        std::pair("guided_choice", "choice"), std::pair("guided_grammar", "grammar")})
    if (const json::value* value = body.find(key)) take(kind, *value);
  return out;
}

Grammar::Symbol read_response_format(const json::value& format, Grammar& grammar, const ServedModel& model) {
  const json::object& object = format.get_object();
  if (object.at("type") == "json_object") return any_json(grammar, true);
  if (object.at("type") == "structural_tag")
    return structural_tag(grammar, format, model.tokenizer.vocabulary());
  const json::value* schema = object.at("json_schema").get_object().if_contains("schema");
  return schema ? json_schema(grammar, *schema, *schema) : any_json(grammar);
}

Constraint make_constraint(Grammar grammar, const ServedModel& model, const std::vector<int32_t>& stop_ids) {
  if (!model.token_tree) fail(ErrorCode::kUnsupported, "structured output needs the vocabulary's token tree");
  const auto shared = std::make_shared<Shared>(std::move(grammar), model.token_tree, stop_ids);
  return {.start = std::make_shared<FollowsGrammar>(shared, shared->machine.start()),
          .fault = [shared]() -> std::string {
            return shared->gave_up ? "the answer outgrew its grammar; simplify the schema" : "";
          }};
}

std::shared_ptr<const TokenConstraint> read_constraint(const json::object& record,
                                                       std::shared_ptr<const TokenTree> tokens) {
  const json::value* stops = record.if_contains("stop_ids");
  if (!stops) fail(ErrorCode::kBadFile, "a recorded constraint has no stop_ids");
  const auto stop_ids = json::try_value_to<std::vector<int32_t>>(*stops);
  if (!stop_ids) fail(ErrorCode::kBadFile, "a recorded constraint's stop_ids are no list of token ids");
  const auto shared = std::make_shared<Shared>(grammar_from_record(record), std::move(tokens), *stop_ids);
  return std::make_shared<FollowsGrammar>(shared, shared->machine.start());
}

void refuse_beside_constraint(BodyFields& body) {
  for (const char* key : {"allowed_token_ids", "bad_words", "min_tokens", "ignore_eos", "stop_token_ids"})
    body.unsupported(key, "leave it out beside a prescribed form, which says what may come");
}

}  // namespace perigee::serve
