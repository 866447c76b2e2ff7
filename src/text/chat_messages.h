// Reading OpenAI-style messages: what both chat formats check and normalise the same way.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace perigee {

enum class Role { kUser, kSystem, kAssistant, kTool };

// One call of an assistant message.
struct HistoryCall {
  std::string id, name;
  boost::json::object arguments;        // in the caller's key order
  std::optional<std::string> raw_json;  // the arguments, when they are a string that is not JSON
  std::string text;                     // the arguments as JSON text, the caller's own where it was a string
};

struct Message {
  Role role = Role::kUser;
  std::string name;                           // "" when absent
  std::vector<std::string> parts;             // content: its text parts, one for a plain string
  std::string reasoning;                      // assistant
  std::vector<HistoryCall> calls;             // assistant
  std::string tool;                           // tool: the function's name; "" when the message does not say
  std::string call_id;                        // tool
  const boost::json::value* tools = nullptr;  // system: tools added in mid-conversation
};

// Throws Error{kBadRequest} or Error{kUnsupported}, naming the message by its index.
std::vector<Message> read_messages(const boost::json::array& messages);

// What OpenAI's API asks of tools: a function with a plain name each, and parameters that are an object where
// there are any. Throws Error{code} naming the entry; `where` precedes its index.
void check_tools(const boost::json::array& tools, ErrorCode code, const std::string& where);

// Puts each run of tool results in the order of the calls they answer, and names them after those calls. A
// run with a result that answers no call stays in its order, and is named by position where it has no name of
// its own.
void order_tool_results(std::vector<Message>& messages);

}  // namespace perigee
