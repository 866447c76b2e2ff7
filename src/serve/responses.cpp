#include "serve/responses.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <ctime>

#include "serve/api_error.h"
#include "serve/chat_completion.h"
#include "serve/request_fields.h"
#include "text/json_text.h"

namespace perigee::serve {

namespace json = boost::json;

namespace {

std::string text_of(const json::value* value) {
  return value && value->is_string() ? std::string(value->get_string()) : std::string();
}

// Collects input items into chat messages: calls and reasoning belong to an assistant turn.
class InputReader {
 public:
  void add(const json::value& item, size_t index) {
    const json::object* object = item.if_object();
    if (!object) fail(ErrorCode::kBadRequest, "input[{}] is not an object", index);
    const std::string type = object->contains("type") ? text_of(object->if_contains("type")) : "message";
    if (type == "message") {
      add_message(*object, index);
    } else if (type == "function_call") {
      json::object& turn = assistant();
      if (!turn.contains("tool_calls")) turn["tool_calls"] = json::array();
      turn["tool_calls"].as_array().push_back(
          {{"id", field(*object, "call_id", index)},
           {"type", "function"},
           {"function",
            {{"name", field(*object, "name", index)}, {"arguments", field(*object, "arguments", index)}}}});
    } else if (type == "function_call_output") {
      const json::value* output = object->if_contains("output");
      messages_.push_back({{"role", "tool"},
                           {"tool_call_id", field(*object, "call_id", index)},
                           {"content", output ? *output : json::value("")}});
    } else if (type == "reasoning") {
      std::string text;
      if (const json::value* content = object->if_contains("content"); content && content->is_array())
        for (const json::value& part : content->get_array())
          if (part.is_object()) text += text_of(part.get_object().if_contains("text"));
      reasoning_ += text;
    } else {
      fail(ErrorCode::kBadRequest,
           "input[{}].type is \"{}\"; expected message, function_call, function_call_output or reasoning",
           index, type);
    }
  }
  json::array take() { return std::move(messages_); }

 private:
  static json::value field(const json::object& object, const char* key, size_t index) {
    const json::value* value = object.if_contains(key);
    if (!value || !value->is_string())
      fail(ErrorCode::kBadRequest, "input[{}].{} is missing or not a string", index, key);
    return *value;
  }

  void add_message(const json::object& object, size_t index) {
    const json::value* content = object.if_contains("content");
    if (!content) fail(ErrorCode::kBadRequest, "input[{}].content is missing", index);
    json::object message = {{"role", field(object, "role", index)}, {"content", *content}};
    if (message["role"] == "assistant" && !reasoning_.empty())
      message["reasoning_content"] = std::exchange(reasoning_, {});
    messages_.push_back(std::move(message));
  }

  // The assistant turn that calls go to: the last message, or a new one.
  json::object& assistant() {
    if (messages_.empty() || messages_.back().as_object()["role"] != "assistant" || !reasoning_.empty()) {
      json::object message = {{"role", "assistant"}, {"content", ""}};
      if (!reasoning_.empty()) message["reasoning_content"] = std::exchange(reasoning_, {});
      messages_.push_back(std::move(message));
    }
    return messages_.back().as_object();
  }

  json::array messages_;
  std::string reasoning_;
};

json::array chat_tools(const json::array& tools) {
  json::array out;
  for (size_t i = 0; i < tools.size(); ++i) {
    const json::object* tool = tools[i].if_object();
    const std::string type = tool ? text_of(tool->if_contains("type")) : "";
    if (type != "function")
      fail(ErrorCode::kBadRequest, "tools[{}].type is \"{}\"; only \"function\" is supported", i, type);
    json::object function = *tool;
    function.erase("type");
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

}  // namespace

json::object chat_request_of(BodyFields& body) {
  json::object chat;
  InputReader input;
  if (const auto instructions = body.string("instructions", SIZE_MAX))
    input.add(json::object{{"role", "system"}, {"content", json::string(*instructions)}}, 0);
  const json::value* items = body.find("input");
  if (!items) body.reject("input", "a string or a list of input items");
  if (items->is_string()) {
    input.add(json::object{{"role", "user"}, {"content", *items}}, 0);
  } else if (items->is_array() && !items->get_array().empty()) {
    for (size_t i = 0; i < items->get_array().size(); ++i) input.add(items->get_array()[i], i);
  } else {
    body.reject("input", "a string or a list of input items");
  }
  chat["messages"] = input.take();
  if (const json::array* tools = body.array("tools"); tools && !tools->empty())
    chat["tools"] = chat_tools(*tools);
  if (const json::value* choice = body.find("tool_choice");
      choice && (*choice != "auto" || chat.contains("tools")))
    chat["tool_choice"] = *choice;
  for (const char* key : {"model", "stream", "temperature", "top_p", "parallel_tool_calls", "seed", "top_k",
                          "min_p", "stop", "presence_penalty", "frequency_penalty", "ignore_eos",
                          "cache_salt", "priority", "chat_template_kwargs"})
    if (const json::value* value = body.find(key)) chat[key] = *value;
  if (const json::value* most = body.find("max_output_tokens")) chat["max_completion_tokens"] = *most;
  if (const json::object* reasoning = body.object("reasoning")) {
    BodyFields fields(*reasoning, "reasoning.");
    if (const json::value* effort = fields.find("effort")) chat["reasoning_effort"] = *effort;
  }
  if (const json::object* text = body.object("text"))
    if (const json::value* format = text->if_contains("format"); format && format->is_object()) {
      // Here the schema stands beside its type.
      json::object flat = format->get_object();
      if (text_of(flat.if_contains("type")) == "json_schema") {
        flat.erase("type");
        chat["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(flat)}};
      } else {
        chat["response_format"] = *format;
      }
    }
  body.unsupported("previous_response_id", "nothing is stored; send the conversation whole");
  body.unsupported("conversation", "nothing is stored; send the conversation whole");
  body.unsupported("background", "wait for the answer, or stream it");
  body.unsupported("prompt", "send the text itself");
  body.unsupported("max_tool_calls", "no tool runs in the server");
  if (const auto truncation = body.string("truncation"); truncation && *truncation != "disabled")
    body.unsupported("truncation", "shorten the conversation yourself");
  for (const char* key : {"include", "metadata", "store", "user", "service_tier", "safety_identifier",
                          "prompt_cache_key", "prompt_cache_retention", "stream_options", "top_logprobs"})
    body.ignore(key);
  return chat;
}

namespace {

struct Shape {
  ServedModel model;
  std::string id;
  int64_t created = 0;
  json::object echo;  // the request's fields that the response repeats
};

class ResponseEnvelope : public Envelope {
 public:
  explicit ResponseEnvelope(Shape shape) : shape_(std::move(shape)) {}

  std::string events(int, const AnswerDelta& delta, const Usage&) override {
    std::string out;
    begin(out);
    if (!delta.reasoning.empty()) {
      enter(Part::kReasoning, out);
      text_ += delta.reasoning;
      event(out, "response.reasoning_text.delta", place({{"delta", delta.reasoning}}));
    }
    if (!delta.content.empty()) {
      enter(Part::kText, out);
      text_ += delta.content;
      event(out, "response.output_text.delta",
            place({{"delta", delta.content}, {"logprobs", json::array()}}));
    }
    for (const ToolCall& call : delta.calls) {
      enter(Part::kNone, out);
      json::object item = call_item(call, "in_progress");
      item["arguments"] = "";
      event(out, "response.output_item.added", {{"output_index", output_.size()}, {"item", item}});
      const json::object at = {{"output_index", output_.size()}, {"item_id", item["id"]}};
      json::object part = at;
      part["delta"] = call.arguments;
      event(out, "response.function_call_arguments.delta", part);
      part = at;
      part["arguments"] = call.arguments;
      part["name"] = call.name;
      event(out, "response.function_call_arguments.done", part);
      end_item(call_item(call, "completed"), out);
    }
    if (!delta.finish.empty()) {
      enter(Part::kNone, out);
      finish_ = delta.finish;
    }
    return out;
  }

  std::string last_events(const Usage& usage) override {
    std::string out;
    begin(out);
    event(out, finish_ == "length" ? "response.incomplete" : "response.completed",
          {{"response", response(&usage)}});
    return out;
  }

  std::string error_events(int status, const std::string& message) override {
    std::string out;
    begin(out);
    json::object failed = response(nullptr);
    failed["status"] = "failed";
    failed["error"] = {{"code", status < 500 ? "invalid_prompt" : "server_error"}, {"message", message}};
    event(out, "response.failed", {{"response", std::move(failed)}});
    return out;
  }

  // The items are made by the very code of the stream, whose events go nowhere.
  std::string whole(std::vector<AnswerDelta> choices, const Usage& usage) override {
    events(0, choices[0], usage);
    return json_text(response(&usage), JsonSpacing::kCompact);
  }

 private:
  enum class Part { kNone, kReasoning, kText };

  void event(std::string& out, std::string_view type, json::object data) {
    json::object all = {{"type", json::string_view(type.data(), type.size())},
                        {"sequence_number", sequence_++}};
    for (auto& field : data) all[field.key()] = std::move(field.value());
    out += fmt::format("event: {}\n", type) + sse(all);
  }

  void begin(std::string& out) {
    if (std::exchange(begun_, true)) return;
    event(out, "response.created", {{"response", response(nullptr)}});
    event(out, "response.in_progress", {{"response", response(nullptr)}});
  }

  std::string item_id() const {
    return fmt::format("{}_{}_{}", part_ == Part::kReasoning ? "rs" : "msg", shape_.id, output_.size());
  }
  json::object place(json::object more) const {
    json::object out = {{"item_id", item_id()}, {"output_index", output_.size()}, {"content_index", 0}};
    for (auto& field : more) out[field.key()] = std::move(field.value());
    return out;
  }
  json::object content_part() const {
    if (part_ == Part::kReasoning) return {{"type", "reasoning_text"}, {"text", text_}};
    return {{"type", "output_text"},
            {"text", text_},
            {"annotations", json::array()},
            {"logprobs", json::array()}};
  }
  json::object item(std::string_view status, bool with_content) const {
    json::array content;
    if (with_content) content.push_back(content_part());
    json::object out = {{"id", item_id()}, {"status", json::string_view(status.data(), status.size())}};
    if (part_ == Part::kReasoning) {
      out["type"] = "reasoning";
      out["summary"] = json::array();
    } else {
      out["type"] = "message";
      out["role"] = "assistant";
    }
    out["content"] = std::move(content);
    return out;
  }
  json::object call_item(const ToolCall& call, std::string_view status) const {
    return {{"id", fmt::format("fc_{}_{}", shape_.id, output_.size())},
            {"type", "function_call"},
            {"status", json::string_view(status.data(), status.size())},
            {"call_id", call.id},
            {"name", call.name},
            {"arguments", call.arguments}};
  }

  void end_item(json::object item, std::string& out) {
    event(out, "response.output_item.done", {{"output_index", output_.size()}, {"item", item}});
    output_.push_back(std::move(item));
  }

  // Ends the item being written unless it is a `part`, and begins one.
  void enter(Part part, std::string& out) {
    if (part == part_) return;
    if (part_ != Part::kNone) {
      event(out, part_ == Part::kReasoning ? "response.reasoning_text.done" : "response.output_text.done",
            place({{"text", text_}, {"logprobs", json::array()}}));
      event(out, "response.content_part.done", place({{"part", content_part()}}));
      end_item(item("completed", true), out);
      text_.clear();
    }
    part_ = part;
    if (part_ == Part::kNone) return;
    event(out, "response.output_item.added",
          {{"output_index", output_.size()}, {"item", item("in_progress", false)}});
    event(out, "response.content_part.added", place({{"part", content_part()}}));
  }

  json::object response(const Usage* usage) const {
    json::object out = {
        {"id", "resp_" + shape_.id},
        {"object", "response"},
        {"created_at", shape_.created},
        {"status", !usage                ? "in_progress"
                   : finish_ == "length" ? "incomplete"
                                         : "completed"},
        {"error", nullptr},
        {"incomplete_details",
         finish_ == "length" ? json::value{{"reason", "max_output_tokens"}} : json::value(nullptr)},
        {"model", shape_.model.name()},
        {"output", output_},
        {"previous_response_id", nullptr},
        {"store", false},
        {"truncation", "disabled"}};
    for (const auto& field : shape_.echo) out[field.key()] = field.value();
    out["usage"] = nullptr;
    if (usage)
      out["usage"] = {{"input_tokens", usage->prompt_tokens},
                      {"input_tokens_details", {{"cached_tokens", usage->cached_tokens}}},
                      {"output_tokens", usage->completion_tokens},
                      {"output_tokens_details", {{"reasoning_tokens", 0}}},
                      {"total_tokens", usage->prompt_tokens + usage->completion_tokens}};
    return out;
  }

  Shape shape_;
  int64_t sequence_ = 0;
  bool begun_ = false;
  Part part_ = Part::kNone;
  std::string text_, finish_;  // text_: of the item being written
  json::array output_;         // whole items
};

}  // namespace

Plan plan_response(BodyFields& body, const ServedModel& model, const std::string& id) {
  const json::object chat = chat_request_of(body);
  BodyFields fields(chat);
  Shape shape{.model = model, .id = id, .created = std::time(nullptr)};
  const auto repeat = [&](const char* key, json::value otherwise) {
    const json::value* value = body.find(key);
    shape.echo[key] = value ? *value : std::move(otherwise);
  };
  repeat("instructions", nullptr);
  repeat("max_output_tokens", nullptr);
  repeat("parallel_tool_calls", true);
  repeat("reasoning", {{"effort", nullptr}, {"summary", nullptr}});
  repeat("temperature", model.defaults.temperature);
  repeat("top_p", model.defaults.top_p);
  repeat("text", {{"format", {{"type", "text"}}}});
  repeat("tool_choice", "auto");
  repeat("tools", json::array());
  repeat("metadata", json::object());
  repeat("user", nullptr);
  return chat_plan(read_chat_work(fields, model), model, id,
                   std::make_unique<ResponseEnvelope>(std::move(shape)));
}

}  // namespace perigee::serve
