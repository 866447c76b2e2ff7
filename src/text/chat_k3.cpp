// Kimi K3's XTML prompt. Every mark-up word is a segment of its own: cuts between segments decide the ids, so
// the order and the splitting below are the format's definition, not a choice.
#include <boost/json.hpp>
#include <initializer_list>

#include "base/error.h"
#include "text/chat.h"
#include "text/chat_grammar_k3.h"
#include "text/chat_messages.h"
#include "text/json_text.h"
#include "text/output_parser_k3.h"

namespace perigee {
namespace {

namespace json = boost::json;

constexpr std::string_view kRawJson =
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional "
    "formatting.";

struct Attribute {
  std::string_view key, value;
};

std::string escape_attribute(std::string_view value) {
  std::string out;
  for (char c : value) {
    if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

class XtmlWriter {
 public:
  void control(std::string_view name) { segments_.push_back({std::string(name), true}); }
  void text(std::string_view text) {
    if (!text.empty()) segments_.push_back({std::string(text), false});
  }
  void open(std::string_view tag, std::initializer_list<Attribute> attributes = {}) {
    control("<|open|>");
    text(tag);
    for (const Attribute& attribute : attributes) {
      text(fmt::format(" {}", attribute.key));
      text("=\"");
      text(escape_attribute(attribute.value));
      text("\"");
    }
    control("<|sep|>");
  }
  void open_message(std::string_view role, std::string_view name) {
    if (name.empty())
      open("message", {{"role", role}});
    else
      open("message", {{"role", role}, {"name", name}});
  }
  void close(std::string_view tag) {
    control("<|close|>");
    text(tag);
    control("<|sep|>");
  }
  void end_message() {
    close("message");
    control("<|end_of_msg|>");
  }
  // A system message that the engine writes itself.
  void notice(std::string_view type, std::string_view body) {
    open("message", {{"role", "system"}, {"type", type}});
    text(strip(body));
    end_message();
  }
  std::vector<Segment> take() { return std::move(segments_); }

 private:
  std::vector<Segment> segments_;
};

std::string_view argument_type(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "boolean";
    case json::kind::string:
      return "string";
    case json::kind::array:
      return "array";
    case json::kind::object:
      return "object";
    default:
      return "number";
  }
}

void write_call(XtmlWriter& out, const HistoryCall& call, size_t position) {
  out.open("call", {{"tool", call.name}, {"index", std::to_string(position)}});
  if (call.raw_json) {
    out.open("json", {{"type", "object"}});
    out.text(*call.raw_json);
    out.close("json");
  }
  for (const auto& argument : call.arguments) {
    const json::value& value = argument.value();
    const std::string_view key(argument.key().data(), argument.key().size());
    out.open("argument", {{"key", key}, {"type", argument_type(value)}});
    if (const json::string* text = value.if_string())
      out.text({text->data(), text->size()});
    else
      out.text(json_text(value, JsonSpacing::kSpaced));
    out.close("argument");
  }
  out.close("call");
}

void write_assistant(XtmlWriter& out, const Message& message, bool thinking) {
  out.open_message("assistant", message.name);
  if (thinking) {
    out.open("think");
    if (!strip(message.reasoning).empty()) out.text(message.reasoning);
    out.close("think");
  }
  out.open("response");
  for (const std::string& part : message.parts) out.text(part);
  out.close("response");
  if (!message.calls.empty()) {
    out.open("tools");
    size_t position = 0;
    for (const HistoryCall& call : message.calls) write_call(out, call, ++position);
    out.close("tools");
  }
  out.end_message();
}

std::string tools_json(const json::value& tools) {
  return "```json\n" + json_text(sort_keys(tools), JsonSpacing::kCompact) + "\n```";
}

void write_messages(XtmlWriter& out, const std::vector<Message>& messages, bool thinking) {
  size_t tool_results = 0;  // since the last assistant turn
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    switch (message.role) {
      case Role::kAssistant:
        tool_results = 0;
        write_assistant(out, message, thinking);
        continue;
      case Role::kTool:
        if (message.tool.empty())
          fail(ErrorCode::kBadRequest,
               "a tool result (tool_call_id \"{}\") answers no call of the assistant turn before it; repeat "
               "that turn's "
               "tool_calls in the history, or give the message a \"name\"",
               message.call_id);
        out.open("message",
                 {{"role", "tool"}, {"tool", message.tool}, {"index", std::to_string(++tool_results)}});
        break;
      case Role::kSystem:
        if (message.tools) {
          out.notice("tool-declare",
                     "## New Tools Available\nThe system dynamically extends the toolset via "
                     "lazy-loading.\nYou have access "
                     "to all existing and extended tools.\nHere are the specs for the extended tools.\n\n" +
                         tools_json(*message.tools));
          continue;
        }
        out.open_message("system", message.name);
        break;
      case Role::kUser:
        out.open_message("user", message.name);
        break;
    }
    for (const std::string& part : message.parts) out.text(part);
    out.end_message();
  }
}

void write_effort(XtmlWriter& out, const std::string& effort) {
  if (effort != "low" && effort != "medium" && effort != "high" && effort != "max")
    fail(ErrorCode::kBadRequest, "thinking effort \"{}\" is unknown; expected low, medium, high or max",
         effort);
  out.notice("thinking-effort",
             "`thinking_effort` guides on how much to think in your thinking channel (not including the "
             "response channel), "
             "supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with "
             "`thinking_effort=" +
                 effort + "`.");
}

void write_tool_choice(XtmlWriter& out, const std::string& choice) {
  if (choice.empty() || choice == "auto") return;
  if (choice != "required" && choice != "none")
    fail(ErrorCode::kBadRequest, "tool_choice \"{}\" is unknown; expected auto, required or none", choice);
  out.notice("tool-choice", "The system is invoked with `tool_choice=" + choice + "`.\nYou " +
                                (choice == "required" ? "MUST" : "MUST NOT") + " call " +
                                (choice == "required" ? "tools" : "any tools") + " in the next message.");
}

void write_response_format(XtmlWriter& out, const json::value& format) {
  const json::object* object = format.if_object();
  const json::value* type = object ? object->if_contains("type") : nullptr;
  const std::string name = type && type->is_string() ? std::string(type->get_string()) : "";
  if (name == "text") return;
  if (name != "json_object" && name != "json_schema")
    fail(ErrorCode::kBadRequest,
         "response_format.type \"{}\" is unknown; expected text, json_object or json_schema", name);
  std::string body = "The system is invoked with `response_format=" + name + "`.\n" + std::string(kRawJson);
  if (name == "json_schema") {
    const json::value* outer = object->if_contains("json_schema");
    const json::object* named = outer ? outer->if_object() : nullptr;
    if (!named) fail(ErrorCode::kBadRequest, "response_format.json_schema is missing or not an object");
    const json::value* schema = named->if_contains("schema");
    body += "\nThe JSON data must match the following schema:\n```json\n" +
            json_text(sort_keys(schema ? *schema : *outer), JsonSpacing::kCompact) + "\n```";
  }
  out.notice("response-format", body);
}

class K3Format : public ChatFormat {
 public:
  explicit K3Format(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  std::vector<Segment> render(const json::array& messages, const ChatOptions& options) const override {
    std::vector<Message> history = read_messages(messages);
    order_tool_results(history);
    XtmlWriter out;
    if (options.tools && !options.tools->empty())
      out.notice("tool-declare", "# Tools\nHere are the available tools, described in JSONSchema.\n\n" +
                                     tools_json(*options.tools));
    if (options.thinking && options.thinking_effort) write_effort(out, *options.thinking_effort);
    write_messages(out, history, options.thinking);
    write_tool_choice(out, options.tool_choice);
    if (options.response_format && !options.response_format->is_null())
      write_response_format(out, *options.response_format);
    if (options.add_generation_prompt) {
      out.open("message", {{"role", "assistant"}});
      out.open(options.thinking ? "think" : "response");
    }
    return out.take();
  }

  std::unique_ptr<OutputParser> parser(bool thinking, std::string_view call_id_salt) const override {
    return std::make_unique<K3OutputParser>(tokenizer_, thinking, call_id_salt);
  }

  void answer_grammar(Grammar& grammar, const AnswerShape& shape) const override {
    k3_answer_grammar(grammar, tokenizer_.vocabulary(), shape);
  }

  std::vector<int32_t> stop_ids() const override {
    std::vector<int32_t> ids;
    for (std::string_view name : {"<|end_of_msg|>", "[EOS]"})
      if (const auto id = tokenizer_.vocabulary().control_id(name)) ids.push_back(*id);
    return ids;
  }

 private:
  Tokenizer tokenizer_;
};

}  // namespace

std::unique_ptr<ChatFormat> make_k3_format(const Tokenizer& tokenizer) {
  return std::make_unique<K3Format>(tokenizer);
}

std::unique_ptr<ChatFormat> make_chat_format(const Tokenizer& tokenizer) {
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  const auto has_all = [&](std::initializer_list<std::string_view> names) {
    for (std::string_view name : names)
      if (!vocabulary.has_control(name)) return false;
    return true;
  };
  if (has_all({"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"})) return make_k3_format(tokenizer);
  if (has_all({"<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>"}))
    return make_k2_format(tokenizer);
  fail(ErrorCode::kUnsupported,
       "the vocabulary has the control tokens of no known chat format (K3: <|open|> …; K2: <|im_user|> …); "
       "take "
       "tokenizer_config.json from the model's own folder");
}

}  // namespace perigee
