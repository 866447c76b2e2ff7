#include "serve/chat_completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <ctime>
#include <deque>

#include "serve/api_error.h"
#include "serve/logprobs_json.h"
#include "text/chat_messages.h"
#include "text/grammar_sources.h"
#include "text/json_text.h"

namespace perigee::serve {

namespace json = boost::json;

namespace {

constexpr size_t kMostMessages = 16384, kMostTools = 1024;

struct Shape {
  ServedModel model;
  std::string id;
  int64_t created = 0;
  StreamFields stream;
  bool logprobs = false, token_ids = false;
  bool reasoning = false;  // answers show it
  TokenNames names = TokenNames::kText;
  int alternatives = 0;
  std::vector<int32_t> prompt;  // when the ids are to be returned
  int prompt_alternatives = -1;
};

json::object logprobs_of(const Shape& shape, const std::vector<GeneratedToken>& tokens) {
  return {{"content", chat_logprobs(shape.model.tokenizer, tokens, shape.alternatives, shape.names)},
          {"refusal", nullptr}};
}

json::value stop_reason(const AnswerDelta& delta) {
  if (delta.stop_string) return json::string(*delta.stop_string);
  if (delta.stop_id) return *delta.stop_id;
  return nullptr;
}

json::array token_ids(const std::vector<GeneratedToken>& tokens) {
  json::array out;
  for (const GeneratedToken& t : tokens) out.push_back(t.id);
  return out;
}

class ChatEnvelope : public Envelope {
 public:
  explicit ChatEnvelope(Shape shape) : shape_(std::move(shape)) {}

  void prompt_logprobs(int, std::vector<GeneratedToken> tokens) override {
    prompt_tokens_ = std::move(tokens);
  }

  std::string events(int choice, const AnswerDelta& delta, const Usage& usage) override {
    std::string out;
    if (begun_.size() <= static_cast<size_t>(choice)) begun_.resize(choice + 1);
    const bool begins = !begun_[choice];
    if (begins) {
      begun_[choice] = true;
      calls_.resize(begun_.size());
      out += event(choice, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr, usage, true);
    }
    // A token may end the thinking and begin the text: two deltas, and its log-probability stands with the
    // last.
    json::object reasoning, rest;
    if (shape_.reasoning && !delta.reasoning.empty())
      reasoning = {{"reasoning", delta.reasoning}, {"reasoning_content", delta.reasoning}};
    if (!delta.content.empty()) rest["content"] = delta.content;
    if (!delta.calls.empty()) {
      json::array calls;
      for (json::value& call : tool_calls_json(delta.calls)) {
        call.as_object()["index"] = calls_[choice]++;
        calls.push_back(std::move(call));
      }
      rest["tool_calls"] = std::move(calls);
    }
    if (!reasoning.empty() && rest.empty()) rest = std::exchange(reasoning, {});
    const std::vector<GeneratedToken>* tokens = &delta.tokens;
    if (!reasoning.empty()) out += event(choice, std::move(reasoning), nullptr, nullptr, usage);
    if (!rest.empty()) out += event(choice, std::move(rest), std::exchange(tokens, nullptr), nullptr, usage);
    // Nothing to show but what was asked of the tokens: those of a thinking that is left out.
    const bool tokens_alone = tokens && !tokens->empty() && (shape_.logprobs || shape_.token_ids);
    if (!delta.finish.empty() || tokens_alone)
      out += event(choice, {}, tokens, delta.finish.empty() ? nullptr : &delta, usage);
    return out;
  }

  std::string last_events(const Usage& usage) override {
    return last_chunks(shape_.stream.include_usage, head("chat.completion.chunk"), usage);
  }

  std::string error_events(int status, const std::string& message) override {
    return error_chunks(status, message);
  }

  std::string whole(std::vector<AnswerDelta> choices, const Usage& usage) override {
    json::object body = head("chat.completion");
    json::array out;
    for (size_t i = 0; i < choices.size(); ++i) {
      AnswerDelta& answer = choices[i];
      const bool silent = answer.content.empty() && !answer.calls.empty();
      json::object message = {
          {"role", "assistant"},
          {"content", silent ? json::value(nullptr) : json::value(json::string(answer.content))},
          {"refusal", nullptr}};
      if (shape_.reasoning) {
        message["reasoning"] = answer.reasoning;
        message["reasoning_content"] = answer.reasoning;
      }
      if (!answer.calls.empty()) message["tool_calls"] = tool_calls_json(answer.calls);
      json::object choice = {{"index", i},
                             {"message", std::move(message)},
                             {"logprobs", shape_.logprobs ? json::value(logprobs_of(shape_, answer.tokens))
                                                          : json::value(nullptr)},
                             {"finish_reason", answer.finish},
                             {"stop_reason", stop_reason(answer)}};
      if (shape_.token_ids) choice["token_ids"] = token_ids(answer.tokens);
      out.push_back(std::move(choice));
    }
    body["choices"] = std::move(out);
    body["usage"] = usage_json(usage);
    if (shape_.token_ids) body["prompt_token_ids"] = json::value_from(shape_.prompt);
    if (shape_.prompt_alternatives >= 0)
      body["prompt_logprobs"] = prompt_logprobs_json(shape_.model.tokenizer, prompt_tokens_);
    return json_text(body, JsonSpacing::kCompact);
  }

 private:
  json::object head(std::string_view object) const {
    return {{"id", "chatcmpl-" + shape_.id},
            {"object", json::string_view(object.data(), object.size())},
            {"created", shape_.created},
            {"model", shape_.model.name()},
            {"system_fingerprint", fingerprint(shape_.model.numerics)}};
  }

  // One chunk, with the log-probabilities of `tokens`, and with the end of the answer.
  std::string event(int index, json::object delta, const std::vector<GeneratedToken>* tokens,
                    const AnswerDelta* end, const Usage& usage, bool first = false) {
    json::object chunk = head("chat.completion.chunk");
    json::object choice = {
        {"index", index}, {"delta", std::move(delta)}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
    if (tokens && shape_.logprobs && !tokens->empty()) choice["logprobs"] = logprobs_of(shape_, *tokens);
    if (end) {
      choice["finish_reason"] = end->finish;
      choice["stop_reason"] = stop_reason(*end);
    }
    if (shape_.token_ids) choice["token_ids"] = tokens ? token_ids(*tokens) : json::array();
    chunk["choices"] = json::array{std::move(choice)};
    if (first && shape_.token_ids) chunk["prompt_token_ids"] = json::value_from(shape_.prompt);
    if (shape_.stream.continuous_usage)
      chunk["usage"] = usage_json(usage);
    else if (shape_.stream.include_usage)
      chunk["usage"] = nullptr;
    return sse(chunk);
  }

  Shape shape_;
  std::vector<bool> begun_;
  std::vector<int> calls_;  // tool calls given out, by choice
  std::vector<GeneratedToken> prompt_tokens_;
};

}  // namespace

json::array tool_calls_json(const std::vector<ToolCall>& calls) {
  json::array out;
  for (const ToolCall& call : calls)
    out.push_back({{"id", call.id},
                   {"type", "function"},
                   {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  return out;
}

namespace {

// The function that tool_choice names: OpenAI's chat and responses APIs spell it in two ways.
std::string named_tool(const json::object& choice, const json::array& tools) {
  const json::value* function = choice.if_contains("function");
  const json::object& inner = function && function->is_object() ? function->get_object() : choice;
  const json::value* name = inner.if_contains("name");
  if (!name || !name->is_string())
    fail(ErrorCode::kBadRequest,
         "tool_choice names no function; give {{\"type\": \"function\", \"function\": {{\"name\": …}}}}");
  for (const json::value& tool : tools)
    if (tool.at("function").at("name") == *name) return std::string(name->get_string());
  fail(ErrorCode::kBadRequest, "tool_choice names the function \"{}\", which is not among the tools",
       std::string_view(name->get_string()).substr(0, 80));
}

void read_tools(BodyFields& body, ChatPrompt& prompt) {
  prompt.tools = body.array("tools", kMostTools);
  if (prompt.tools && prompt.tools->empty()) prompt.tools = nullptr;
  if (prompt.tools) {
    check_tools(*prompt.tools, ErrorCode::kBadRequest, "tools");
    for (const json::value& tool : *prompt.tools) {
      const json::value* strict = tool.at("function").as_object().if_contains("strict");
      prompt.strict_tools |= strict && *strict == true;
    }
    prompt.options.tools = prompt.tools;
  }
  const json::value* choice = body.find("tool_choice");
  if (!choice) return;
  if (choice->is_string() && choice->get_string() == "none") {
    prompt.options.tool_choice = "none";
  } else if (choice->is_string() && choice->get_string() == "auto") {
    if (!prompt.tools)
      fail(ErrorCode::kBadRequest, "tool_choice is \"auto\", but there are no tools; send some");
  } else if (choice->is_object() || (choice->is_string() && choice->get_string() == "required")) {
    if (!prompt.tools)
      fail(ErrorCode::kBadRequest, "tool_choice forces a call, but there are no tools; send some");
    prompt.must_call = true;
    prompt.options.tool_choice = "required";
    if (choice->is_object()) prompt.only_tool = named_tool(choice->get_object(), *prompt.tools);
  } else {
    body.reject("tool_choice",
                "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": …}}");
  }
}

void read_response_format(BodyFields& body, ChatPrompt& prompt) {
  const json::object* format = body.object("response_format");
  if (!format) return;
  BodyFields fields(*format, "response_format.");
  const auto type = fields.choice("type", {"text", "json_object", "json_schema", "structural_tag"});
  if (!type) fields.reject("type", "text, json_object, json_schema or structural_tag");
  if (*type == "json_schema") {
    const json::object* schema = fields.object("json_schema");
    if (!schema) fields.reject("json_schema", "an object with name and schema");
  }
  if (*type == "text") return;
  prompt.form = body.find("response_format");
  // The chat formats have words for JSON alone.
  if (*type != "structural_tag") prompt.options.response_format = prompt.form;
}

// thinking and its effort: chat_template_kwargs, reasoning_effort, Moonshot's own "thinking".
void read_thinking(BodyFields& body, const ServedModel& model, ChatOptions& options) {
  const auto read_kwargs = [&](const json::object& object, std::string where) {
    BodyFields kwargs(object, std::move(where));
    for (const char* key : {"thinking", "enable_thinking"})
      if (const auto on = kwargs.boolean(key)) options.thinking = *on;
    if (const auto effort = kwargs.choice("thinking_effort", {"low", "medium", "high", "max"}))
      options.thinking_effort = effort;
    if (const auto unknown = kwargs.unknown(); !unknown.empty())
      fail(ErrorCode::kBadRequest,
           "{} is unknown; the chat formats know thinking, enable_thinking and thinking_effort",
           unknown.front());
  };
  read_kwargs(model.chat_defaults, "--default-chat-template-kwargs ");
  if (const auto effort =
          body.choice("reasoning_effort", {"none", "minimal", "low", "medium", "high", "xhigh", "max"})) {
    if (*effort == "none")
      options.thinking = false;
    else
      options.thinking_effort = *effort == "minimal" ? "low" : *effort == "xhigh" ? "max" : *effort;
  }
  if (const json::object* thinking = body.object("thinking")) {
    BodyFields fields(*thinking, "thinking.");
    if (const auto type = fields.choice("type", {"enabled", "disabled"}))
      options.thinking = *type == "enabled";
  }
  if (const json::object* kwargs = body.object("chat_template_kwargs"))
    read_kwargs(*kwargs, "chat_template_kwargs.");
}

}  // namespace

ChatPrompt read_chat_prompt(BodyFields& body, const ServedModel& model) {
  ChatPrompt prompt;
  prompt.messages = body.array("messages", kMostMessages);
  if (!prompt.messages || prompt.messages->empty()) body.reject("messages", "a list of at least one message");
  read_thinking(body, model, prompt.options);
  read_tools(body, prompt);
  read_response_format(body, prompt);
  prompt.options.add_generation_prompt = body.boolean("add_generation_prompt").value_or(true);
  body.unsupported("continue_final_message", "the chat format has no open answers");
  body.unsupported("chat_template", "chat formats are native code; no template is run");
  body.unsupported("documents", "put them into a message");
  return prompt;
}

// The form of the answer, where the request prescribes one: forced and strict tools, a schema, a grammar.
static Constraint chat_constraint(BodyFields& body, const ServedModel& model, const ChatPrompt& prompt,
                                  bool one_call, const std::vector<int32_t>& stop_ids,
                                  std::vector<std::string>& warnings) {
  Grammar grammar;
  grammar.new_rule();  // rule 0, for the format to fill
  AnswerShape shape{.thinking = prompt.options.thinking, .must_call = prompt.must_call, .one_call = one_call};
  shape.content = read_structured_outputs(body, grammar, model);
  if (prompt.form) {
    if (shape.content)
      fail(ErrorCode::kBadRequest,
           "structured_outputs and response_format both prescribe a form; give one of them");
    shape.content = read_response_format(*prompt.form, grammar, model);
  }
  if (!shape.content && !prompt.must_call && !prompt.strict_tools) return {};
  refuse_beside_constraint(body);
  std::deque<json::value> relaxed;
  std::vector<std::string> dropped;
  const size_t tools = prompt.tools && prompt.options.tool_choice != "none" ? prompt.tools->size() : 0;
  for (size_t i = 0; i < tools; ++i) {
    const json::object& function = prompt.tools->at(i).at("function").as_object();
    const std::string name(function.at("name").as_string());
    if (!prompt.only_tool.empty() && prompt.only_tool != name) continue;
    const json::value *parameters = function.if_contains("parameters"),
                      *strict = function.if_contains("strict");
    // Nobody asked for these to be kept: the call must come, and keeps what can be kept.
    if (parameters && parameters->is_object() && !(strict && *strict == true))
      parameters = &relaxed.emplace_back(
          relaxed_schema(*parameters, fmt::format("tools[{}].function.parameters", i), dropped));
    shape.tools.push_back({name, parameters});
  }
  if (!dropped.empty()) warnings.push_back("not enforced: " + listed(dropped));
  model.format->answer_grammar(grammar, shape);
  return make_constraint(std::move(grammar), model, stop_ids);
}

// With skip_special_tokens false the content is what the model wrote, control tokens by name and nothing
// parsed, as vLLM has it. Clients that send it beside tools mean the calls that parsers make of it.
static void read_special_tokens(BodyFields& body, ChatWork& work) {
  if (body.boolean("skip_special_tokens").value_or(true)) return;
  if (work.prompt.tools && work.prompt.options.tool_choice != "none") {
    work.warnings.emplace_back("skip_special_tokens has no effect beside tools");
    return;
  }
  work.unparsed = work.answer.show_control = true;
}

ChatWork read_chat_work(BodyFields& body, const ServedModel& model) {
  check_model_name(body, model);
  ChatWork work;
  work.prompt = read_chat_prompt(body, model);
  if (!work.prompt.options.add_generation_prompt)
    fail(ErrorCode::kBadRequest,
         "add_generation_prompt is false; an answer needs its beginning; leave it out");
  work.stream = read_stream_fields(body);
  Request& request = work.request;
  read_generation_fields(body, model, request, work.answer);
  work.answer.one_call = !body.boolean("parallel_tool_calls").value_or(true);
  read_special_tokens(body, work);
  const auto max_completion = body.integer("max_completion_tokens", 1, 1 << 30);
  const auto max_tokens = body.integer("max_tokens", 1, 1 << 30);
  refuse_unsupported(body);
  request.prompt = model.tokenizer.encode(model.format->render(*work.prompt.messages, work.prompt.options));
  request.max_tokens = answer_room(model, request.prompt.size(), max_completion ? max_completion : max_tokens,
                                   max_completion ? "max_completion_tokens" : "max_tokens");
  if (request.logits.min_tokens > request.max_tokens)
    fail(ErrorCode::kBadRequest, "min_tokens is {}, but at most {} tokens will be generated",
         request.logits.min_tokens, request.max_tokens);
  Constraint constraint =
      chat_constraint(body, model, work.prompt, work.answer.one_call, request.stop_ids, work.warnings);
  request.logits.constraint = std::move(constraint.start);
  work.fault = std::move(constraint.fault);
  return work;
}

Plan chat_plan(ChatWork work, const ServedModel& model, const std::string& id,
               std::unique_ptr<Envelope> envelope) {
  Plan plan;
  plan.stream = work.stream.stream;
  for (int branch = 0; branch < work.request.n; ++branch)
    plan.answers.emplace_back(
        model.tokenizer,
        work.unparsed ? nullptr
                      : model.format->parser(work.prompt.options.thinking, id + ":" + std::to_string(branch)),
        work.answer);
  plan.requests.push_back(std::move(work.request));
  plan.envelope = std::move(envelope);
  plan.fault = std::move(work.fault);
  plan.warnings = std::move(work.warnings);
  return plan;
}

Plan plan_chat_completion(BodyFields& body, const ServedModel& model, const std::string& id) {
  body.unsupported("functions", "use tools");
  body.unsupported("function_call", "use tool_choice");
  body.unsupported("audio", "ask for text");
  body.unsupported("web_search_options", "describe a tool");
  body.unsupported("best_of", "ask for n answers");
  if (body.boolean("echo").value_or(false)) body.unsupported("echo", "the prompt is in your messages");
  if (const json::array* modalities = body.array("modalities", 8))
    if (modalities->size() != 1 || (*modalities)[0] != "text") body.reject("modalities", "[\"text\"]");

  ChatWork work = read_chat_work(body, model);
  Shape shape{.model = model,
              .id = id,
              .created = std::time(nullptr),
              .stream = work.stream,
              .reasoning = work.prompt.options.thinking && !work.unparsed};
  // Left out of the answer; it costs its tokens all the same.
  if (!body.boolean("include_reasoning").value_or(true)) shape.reasoning = false;
  if (body.boolean("return_tokens_as_token_ids").value_or(false)) shape.names = TokenNames::kIds;
  shape.logprobs = body.boolean("logprobs").value_or(false);
  if (const auto top = body.integer("top_logprobs", 0, kMostAlternatives)) {
    if (!shape.logprobs && *top > 0)
      fail(ErrorCode::kBadRequest, "top_logprobs is {}, but logprobs is not true; set it", *top);
    shape.alternatives = static_cast<int>(*top);
  }
  work.request.top_logprobs = shape.alternatives;
  if (const auto n = body.integer("prompt_logprobs", 0, kMostAlternatives)) {
    if (shape.stream.stream)
      fail(ErrorCode::kBadRequest, "prompt_logprobs is given with \"stream\": true; ask for a whole answer");
    work.request.prompt_logprobs = shape.prompt_alternatives = static_cast<int>(*n);
  }
  shape.token_ids = body.boolean("return_token_ids").value_or(false);
  if (shape.token_ids) shape.prompt = work.request.prompt;
  return chat_plan(std::move(work), model, id, std::make_unique<ChatEnvelope>(std::move(shape)));
}

}  // namespace perigee::serve
