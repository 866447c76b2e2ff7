// Eval suites: a file of questions with known answers, and how an answer is judged.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "text/output_parser.h"

namespace perigee::cli {

struct EvalItem {
  std::string id;
  boost::json::array messages;
  boost::json::array tools;
  bool thinking = true;
  int max_tokens = 512;
  boost::json::object answer;  // {"type": "text" | "json" | "tool_calls", …}
};

struct EvalSuite {
  std::string name;
  std::vector<EvalItem> items;
};

// Suites of a model folder: eval/NAME.jsonl. With no names, all of them. Throws Error{kUsage} naming the
// suites there are.
std::vector<EvalSuite> load_suites(const std::string& model, const std::vector<std::string>& names);

// text: the content equals the text, both trimmed. json: the content parses to an equal value. tool_calls:
// the same calls in the same order, arguments equal as JSON values.
bool is_correct(const ParsedMessage& message, const boost::json::object& answer);

// What the model said, on one line.
std::string describe(const ParsedMessage& message);

}  // namespace perigee::cli
