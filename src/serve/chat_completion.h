// /v1/chat/completions: from a request's JSON to a plan, and from answers to its JSON.
#pragma once

#include <boost/json/array.hpp>
#include <string>

#include "serve/body_fields.h"
#include "serve/exchange.h"
#include "serve/request_fields.h"
#include "serve/served_model.h"
#include "text/chat.h"

namespace perigee::serve {

// What a chat request says about its prompt: shared with /tokenize.
struct ChatPrompt {
  const boost::json::array* messages = nullptr;
  const boost::json::array* tools = nullptr;
  ChatOptions options;
  const boost::json::value* form = nullptr;  // response_format where it prescribes one
  bool strict_tools = false, must_call = false;
  std::string only_tool;  // that may be called; empty: any
};
ChatPrompt read_chat_prompt(BodyFields& body, const ServedModel& model);

// A chat request read whole: checked, rendered, tokenised.
struct ChatWork {
  ChatPrompt prompt;  // points into the request's body
  StreamFields stream;
  Request request;
  AnswerOptions answer;
  bool unparsed = false;  // the content is all that the model writes
  ConstraintFault fault;
  std::vector<std::string> warnings;
};
ChatWork read_chat_work(BodyFields& body, const ServedModel& model);
Plan chat_plan(ChatWork work, const ServedModel& model, const std::string& id,
               std::unique_ptr<Envelope> envelope);

// `id` is the request's. Throws Error for a request that cannot be.
Plan plan_chat_completion(BodyFields& body, const ServedModel& model, const std::string& id);

boost::json::array tool_calls_json(const std::vector<ToolCall>& calls);

}  // namespace perigee::serve
