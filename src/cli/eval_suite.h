// Eval suites: a file of questions with known answers, and how an answer is judged.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "text/output_parser.h"

namespace perigee::cli {

// What is said to the model, and what it must answer.
struct EvalTurn {
  boost::json::array messages;
  boost::json::object answer;  // {"type": "text" | "json" | "tool_calls", …}
};

struct EvalItem {
  std::string id;
  std::string document;         // items with the same non-empty name begin with the same text
  std::vector<EvalTurn> turns;  // one, or a conversation: each turn follows a right answer to the one before
  boost::json::array tools;
  bool thinking = true;
  int max_tokens = 512;  // of each turn
};

struct EvalSuite {
  std::string name;
  std::vector<EvalItem> items;
};

// Suites of a model folder: eval/NAME.jsonl. With no names, all of them. A line is an item, or a document
// {"document": name, "text": …} for the items after it that name it: their first message is the text, a line
// break and their own. Throws Error{kUsage} naming the suites there are, Error{kBadFile} naming file and
// line.
std::vector<EvalSuite> load_suites(const std::string& model, const std::vector<std::string>& names);

// text: the content equals the text, both trimmed. json: the content parses to an equal value. tool_calls:
// the same calls in the same order, arguments equal as JSON values.
bool is_correct(const ParsedMessage& message, const boost::json::object& answer);

// What the model said, on one line.
std::string describe(const ParsedMessage& message);

}  // namespace perigee::cli
