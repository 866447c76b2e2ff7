#include "text/chat_messages.h"

#include <algorithm>
#include <boost/json.hpp>

#include "base/error.h"
#include "text/json_text.h"

namespace perigee {
namespace {

namespace json = boost::json;

std::string_view view(const json::string& s) { return {s.data(), s.size()}; }

// The string member `key`, "" when absent or null.
std::string string_member(const json::object& object, std::string_view key, size_t index) {
  const json::value* value = object.if_contains(json::string_view(key.data(), key.size()));
  if (!value || value->is_null()) return "";
  if (!value->is_string())
    fail(ErrorCode::kBadRequest, "messages[{}].{} is {}; expected a string", index, key,
         json_text(*value, JsonSpacing::kSpaced).substr(0, 80));
  return std::string(view(value->get_string()));
}

Role read_role(const json::object& message, size_t index) {
  const std::string role = string_member(message, "role", index);
  if (role == "user") return Role::kUser;
  if (role == "system" || role == "developer") return Role::kSystem;
  if (role == "assistant") return Role::kAssistant;
  if (role == "tool") return Role::kTool;
  fail(ErrorCode::kBadRequest,
       "messages[{}] has the role \"{}\"; expected system, developer, user, assistant or tool", index, role);
}

std::vector<std::string> read_content(const json::object& message, size_t index) {
  const json::value* content = message.if_contains("content");
  if (!content || content->is_null()) return {};
  if (content->is_string()) return {std::string(view(content->get_string()))};
  if (!content->is_array())
    fail(ErrorCode::kBadRequest, "messages[{}].content is neither a string, nor a list of parts, nor null",
         index);
  std::vector<std::string> parts;
  for (const json::value& part : content->get_array()) {
    const json::object* object = part.if_object();
    if (!object)
      fail(ErrorCode::kBadRequest, "messages[{}].content holds a part that is not an object", index);
    const std::string type = string_member(*object, "type", index);
    if (type.starts_with("image") || type == "input_image" || type.starts_with("video"))
      fail(ErrorCode::kUnsupported,
           "messages[{}].content holds a part of type \"{}\": images are not supported; send text", index,
           type);
    if (type != "text" && type != "input_text" && type != "output_text" && !type.empty())
      fail(ErrorCode::kBadRequest, "messages[{}].content holds a part of type \"{}\"; expected \"text\"",
           index, type);
    if (!object->if_contains("text"))
      fail(ErrorCode::kBadRequest, "messages[{}].content holds a text part without \"text\"", index);
    parts.push_back(string_member(*object, "text", index));
  }
  return parts;
}

HistoryCall read_call(const json::value& value, size_t index, size_t position) {
  const json::object* call = value.if_object();
  const json::value* inner = call ? call->if_contains("function") : nullptr;
  const json::object* function = inner ? inner->if_object() : call;
  if (!function || !function->if_contains("name"))
    fail(ErrorCode::kBadRequest, "messages[{}].tool_calls[{}] has no function name", index, position);
  HistoryCall out{.id = string_member(*call, "id", index),
                  .name = string_member(*function, "name", index),
                  .arguments = {},
                  .raw_json = {},
                  .text = "{}"};
  const json::value* arguments = function->if_contains("arguments");
  if (!arguments || arguments->is_null()) return out;
  const auto reject = [&] {
    fail(ErrorCode::kBadRequest,
         "messages[{}].tool_calls[{}].function.arguments is not a JSON object or a string that holds one",
         index, position);
  };
  if (arguments->is_object()) {
    out.arguments = arguments->get_object();
    out.text = json_text(*arguments, JsonSpacing::kSpaced);
  } else if (arguments->is_string()) {
    const std::string_view text = view(arguments->get_string());
    if (strip(text).empty()) return out;
    out.text = std::string(text);
    std::optional<json::value> parsed = parse_json(text);
    if (!parsed)
      out.raw_json = out.text;
    else if (!parsed->is_object())
      reject();
    else
      out.arguments = std::move(parsed->get_object());
  } else {
    reject();
  }
  return out;
}

Message read_message(const json::value& value, size_t index) {
  const json::object* object = value.if_object();
  if (!object) fail(ErrorCode::kBadRequest, "messages[{}] is not an object", index);
  Message message;
  message.role = read_role(*object, index);
  message.name = string_member(*object, "name", index);
  message.parts = read_content(*object, index);
  if (message.role == Role::kAssistant) {
    message.reasoning = string_member(*object, "reasoning_content", index);
    if (message.reasoning.empty()) message.reasoning = string_member(*object, "reasoning", index);
    const json::value* calls = object->if_contains("tool_calls");
    if (calls && !calls->is_null()) {
      if (!calls->is_array()) fail(ErrorCode::kBadRequest, "messages[{}].tool_calls is not a list", index);
      for (const json::value& call : calls->get_array())
        message.calls.push_back(read_call(call, index, message.calls.size()));
    }
  } else if (message.role == Role::kTool) {
    message.tool = string_member(*object, "tool", index);
    if (message.tool.empty()) message.tool = message.name;
    message.call_id = string_member(*object, "tool_call_id", index);
    if (message.call_id.empty()) message.call_id = string_member(*object, "id", index);
  } else if (message.role == Role::kSystem) {
    const json::value* tools = object->if_contains("tools");
    if (tools && !tools->is_null()) {
      if (!tools->is_array()) fail(ErrorCode::kBadRequest, "messages[{}].tools is not a list", index);
      if (!tools->get_array().empty()) message.tools = tools;
    }
  }
  return message;
}

}  // namespace

std::vector<Message> read_messages(const json::array& messages) {
  std::vector<Message> out;
  for (const json::value& message : messages) out.push_back(read_message(message, out.size()));
  return out;
}

void check_tools(const json::array& tools, ErrorCode code, const std::string& where) {
  for (size_t i = 0; i < tools.size(); ++i) {
    const json::object* object = tools[i].if_object();
    const json::value* function = object ? object->if_contains("function") : nullptr;
    const json::object* inner = function ? function->if_object() : nullptr;
    const json::value* name = inner ? inner->if_contains("name") : nullptr;
    if (!name || !name->is_string())
      fail(code, "{}[{}] has no function.name; OpenAI's tool objects have one", where, i);
    const std::string_view text = view(name->get_string());
    const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
             c == '-' || c == '.';
    });
    if (text.empty() || text.size() > 64 || !plain)
      fail(code, "{}[{}] has the function.name {}; 1 to 64 letters, digits, '_', '-' and '.' are needed",
           where, i, json_string(text.substr(0, 80)));
    const json::value* parameters = inner->if_contains("parameters");
    if (parameters && !parameters->is_object() && !parameters->is_null())
      fail(code, "{}[{}] ({}) has function.parameters that are not an object; give a JSON schema", where, i,
           text);
  }
}

void order_tool_results(std::vector<Message>& messages) {
  std::vector<HistoryCall> calls;  // of the latest assistant turn
  size_t results = 0;              // tool results since that turn
  for (size_t at = 0; at < messages.size();) {
    if (messages[at].role != Role::kTool) {
      if (messages[at].role == Role::kAssistant) {
        calls = messages[at].calls;
        results = 0;
      }
      ++at;
      continue;
    }
    size_t end = at;
    while (end < messages.size() && messages[end].role == Role::kTool) ++end;
    const auto call_of = [&](const Message& m) {  // the first call with the message's id, or calls.size()
      const auto same = [&](const HistoryCall& call) { return !call.id.empty() && call.id == m.call_id; };
      return static_cast<size_t>(std::find_if(calls.begin(), calls.end(), same) - calls.begin());
    };
    const auto begin = messages.begin() + static_cast<ptrdiff_t>(at);
    const auto stop = messages.begin() + static_cast<ptrdiff_t>(end);
    if (std::all_of(begin, stop, [&](const Message& m) { return call_of(m) < calls.size(); })) {
      std::stable_sort(begin, stop,
                       [&](const Message& a, const Message& b) { return call_of(a) < call_of(b); });
      std::for_each(begin, stop, [&](Message& m) { m.tool = calls[call_of(m)].name; });
    }
    for (; at < end; ++at, ++results)
      if (messages[at].tool.empty() && results < calls.size()) messages[at].tool = calls[results].name;
  }
}

}  // namespace perigee
