#include "request_check.h"

#include <boost/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "http_check.h"
#include "require.h"
#include "serve/chat_completion.h"
#include "serve/responses.h"
#include "serve/text_completion.h"
#include "serve/tokenize.h"
#include "text/grammar_sources.h"
#include "text/output_parser_k2.h"
#include "text/output_parser_k3.h"
#include "text/utf8.h"

namespace perigee {

namespace json = boost::json;

namespace {

const serve::ServedModel& model() {
  static const serve::ServedModel made = [] {
    const Tokenizer tokenizer = Tokenizer::load("models/tiny-k31");
    serve::ServedModel m{.names = {"tiny"}, .root = "models/tiny-k31", .tokenizer = tokenizer};
    m.format = make_chat_format(tokenizer);
    m.token_tree = std::make_shared<TokenTree>(tokenizer.vocabulary());
    m.stop_ids = m.format->stop_ids();
    m.max_model_len = 4096;
    m.numerics.digest = "0123456789abcdef";
    return m;
  }();
  return made;
}

// Tokens that follow from the input.
class Draws {
 public:
  explicit Draws(std::string_view input) {
    for (const char c : input) state_ = (state_ ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  }
  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    return state_ ^= state_ << 17;
  }
  // Control tokens often: they are few, and say most.
  int32_t token() {
    const auto& vocabulary = model().tokenizer.vocabulary();
    const int32_t base = vocabulary.base_size();
    const uint64_t draw = next();
    return static_cast<int32_t>(draw % 3 ? draw / 3 % static_cast<uint64_t>(base)
                                         : static_cast<uint64_t>(base) +
                                               draw / 3 % static_cast<uint64_t>(vocabulary.size() - base));
  }

 private:
  uint64_t state_ = 0xCBF29CE484222325u;
};

void check_json(std::string_view text) {
  boost::system::error_code error;
  json::parse(json::string_view(text.data(), text.size()), error);
  require(!error, "an answer is not JSON");
}

void check_stream(std::string_view events) {
  require(is_valid_utf8(events), "a stream is not UTF-8");
  for (size_t at = 0; (at = events.find("data: ", at)) != std::string_view::npos;) {
    const size_t end = events.find("\n\n", at);
    require(end != std::string_view::npos, "an event of a stream has no end");
    const std::string_view data = events.substr(at + 6, end - at - 6);
    if (data != "[DONE]") check_json(data);
    at = end;
  }
}

// The plan's answers, of tokens that follow from the input and keep to the constraint.
void answer(serve::Plan plan, std::string_view input) {
  Draws draws(input);
  require(plan.answers.size() >= plan.requests.size() && !plan.requests.empty(), "a plan without answers");
  std::vector<serve::AnswerDelta> whole;
  std::string events;
  const serve::Usage usage;
  for (size_t i = 0; i < plan.answers.size(); ++i) {
    const Request& request = plan.requests[std::min(i, plan.requests.size() - 1)];
    for (int32_t id : request.prompt) require(id >= 0 && id < model().vocabulary(), "a prompt's token");
    std::shared_ptr<const TokenConstraint> state = request.logits.constraint;
    serve::AnswerDelta held;
    // The first few answers at length, the others as one token.
    for (int left = i < 2 ? 24 : 1; left > 0 && held.finish.empty(); --left) {
      int32_t id = draws.token();
      if (state) {
        const std::vector<int32_t>& allowed = state->allowed();
        if (allowed.empty()) break;
        id = allowed[draws.next() % allowed.size()];
        state = state->after(id);
      }
      const GeneratedToken token{.id = id, .logprob = -1, .top = {{id, -1.0f}}};
      held.append(plan.answers[i].push({&token, 1}, left == 1 ? FinishReason::kLength : FinishReason::kNone));
      if (plan.stream && held.visible())
        events += plan.envelope->events(static_cast<int>(i), std::exchange(held, {}), usage);
      if (plan.answers[i].ended()) break;
    }
    whole.push_back(std::move(held));
  }
  if (plan.stream) return check_stream(events + plan.envelope->last_events(usage));
  const std::string body = plan.envelope->whole(std::move(whole), usage);
  require(is_valid_utf8(body), "an answer is not UTF-8");
  check_json(body);
}

void parse_tokens(std::string_view input) {
  const bool thinking = !input.empty() && input[0] % 2;
  K3OutputParser k3(model().tokenizer, thinking);
  K2OutputParser k2(model().tokenizer, thinking);
  for (OutputParser* parser : {static_cast<OutputParser*>(&k3), static_cast<OutputParser*>(&k2)}) {
    Delta joined;
    const auto add = [&](const Delta& delta) {
      require(is_valid_utf8(delta.reasoning) && is_valid_utf8(delta.content), "a parsed text is not UTF-8");
      joined.reasoning += delta.reasoning;
      joined.content += delta.content;
      for (const ToolCall& call : delta.tool_calls) {
        require(!call.name.empty(), "a call without a name");
        check_json(call.arguments);
        joined.tool_calls.push_back(call);
      }
    };
    // Two bytes a token, all control tokens near the end of the range.
    for (size_t at = 1; at + 1 < input.size(); at += 2) {
      const int32_t number = static_cast<uint8_t>(input[at]) << 8 | static_cast<uint8_t>(input[at + 1]);
      add(parser->push(number < 0xFF00 ? number % model().vocabulary()
                                       : model().tokenizer.vocabulary().base_size() + (number & 0xFF)));
    }
    add(parser->flush());
    require(parser->finish() == joined, "the deltas do not join to the whole");
  }
}

// A text that keeps to the grammar, as far as a few tokens go.
void follow(Grammar grammar, std::string_view input) {
  GrammarMachine machine(std::move(grammar), model().token_tree, model().stop_ids);
  Draws draws(input);
  const GrammarMachine::State* state = machine.start();
  for (int i = 0; i < 12; ++i) {
    const std::vector<int32_t>& allowed = machine.allowed(state);
    if (allowed.empty()) return;
    state = machine.after(state, allowed[draws.next() % allowed.size()]);
    require(state != nullptr, "an allowed token is refused");
  }
}

void compile(int kind, std::string_view text) {
  Grammar grammar;
  const int32_t root = grammar.new_rule();
  if (kind == 0)
    return follow((grammar.add(root, {regular_expression(grammar, text, any_ascii())}), grammar), text);
  if (kind == 1) return follow((grammar.add(root, {ebnf(grammar, text)}), grammar), text);
  const json::object body = serve::parse_body(text);
  std::vector<std::string> dropped;
  const json::value schema = kind == 2 ? json::value(body) : relaxed_schema(body, "", dropped);
  grammar.add(root, {json_schema(grammar, schema, schema)});
  follow(std::move(grammar), text);
}

void take(int kind, std::string_view text) {
  if (kind == 3) return (void)serve::tokenize(text, model());
  if (kind == 4) return (void)serve::detokenize(text, model());
  if (kind == 5) return parse_tokens(text);
  if (kind >= 6 && kind <= 9) return compile(kind - 6, text);
  if (kind == 10) return check_http(text);
  const json::object object = serve::parse_body(text);
  serve::BodyFields body(object);
  const auto plan = kind == 0   ? serve::plan_chat_completion
                    : kind == 1 ? serve::plan_text_completion
                                : serve::plan_response;
  answer(plan(body, model(), "id"), text);
}

}  // namespace

bool check_request(const void* data, size_t size) {
  if (size == 0) return false;
  const auto* bytes = static_cast<const char*>(data);
  // '0' … '9' and ':', so that a corpus can be read.
  const int kind = (static_cast<uint8_t>(bytes[0]) + kInputKinds - '0' % kInputKinds) % kInputKinds;
  try {
    take(kind, {bytes + 1, size - 1});
    return true;
  } catch (const Error& error) {
    const ErrorCode code = error.code();
    const bool clients =
        code == ErrorCode::kBadRequest || code == ErrorCode::kUnsupported || code == ErrorCode::kBusy;
    require(clients, error.what());
    require(is_valid_utf8(error.what()), "an error's message is not UTF-8");
    return false;
  }
}

}  // namespace perigee
