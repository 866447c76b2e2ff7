#include "cli/eval_suite.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

#include "base/read_file.h"

namespace perigee::cli {

namespace {

namespace fs = std::filesystem;

std::string trimmed(std::string_view text) {
  const char* const space = " \t\r\n";
  const size_t begin = text.find_first_not_of(space);
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(space) - begin + 1));
}

boost::json::object parse_line(const std::string& line, const std::string& where) {
  boost::system::error_code error;
  boost::json::value json = boost::json::parse(line, error);
  if (error || !json.is_object()) fail(ErrorCode::kBadFile, "{}: not a JSON object", where);
  return std::move(json.as_object());
}

std::string text_of(const boost::json::object& o, const char* key) {
  const boost::json::value* value = o.if_contains(key);
  return value && value->is_string() ? std::string(value->as_string()) : std::string();
}

EvalTurn parse_turn(const boost::json::object& o, const std::string& where) {
  const auto* messages = o.if_contains("messages");
  const auto* answer = o.if_contains("answer");
  if (!messages || !messages->is_array() || !answer || !answer->is_object()) {
    fail(ErrorCode::kBadFile, "{}: needs \"messages\" (array) and \"answer\" (object)", where);
  }
  return {.messages = messages->as_array(), .answer = answer->as_object()};
}

// Puts the document before the item's first message.
void add_document(EvalItem& item, const std::map<std::string, std::string>& documents,
                  const std::string& where) {
  const auto document = documents.find(item.document);
  if (document == documents.end())
    fail(ErrorCode::kBadFile, "{}: no line before it holds document '{}'", where, item.document);
  boost::json::array& messages = item.turns[0].messages;
  if (messages.empty() || !messages[0].is_object() || text_of(messages[0].as_object(), "content").empty())
    fail(ErrorCode::kBadFile, "{}: an item with a document needs a first message with a text", where);
  boost::json::object& first = messages[0].as_object();
  first["content"] = document->second + "\n" + text_of(first, "content");
}

EvalItem parse_item(const boost::json::object& o, const std::map<std::string, std::string>& documents,
                    const std::string& where) {
  EvalItem item;
  item.id = text_of(o, "id");
  item.document = text_of(o, "document");
  item.turns.push_back(parse_turn(o, where));
  if (const auto* then = o.if_contains("then")) {
    if (!then->is_array()) fail(ErrorCode::kBadFile, "{}: \"then\" must be an array of turns", where);
    for (const boost::json::value& turn : then->as_array()) {
      if (!turn.is_object()) fail(ErrorCode::kBadFile, "{}: \"then\" must hold objects", where);
      item.turns.push_back(parse_turn(turn.as_object(), where));
    }
  }
  if (const auto* tools = o.if_contains("tools"); tools && tools->is_array()) item.tools = tools->as_array();
  if (const auto* thinking = o.if_contains("thinking"); thinking && thinking->is_bool())
    item.thinking = thinking->as_bool();
  if (const auto* n = o.if_contains("max_tokens"); n && n->is_int64())
    item.max_tokens = static_cast<int>(n->as_int64());
  if (!item.document.empty()) add_document(item, documents, where);
  return item;
}

}  // namespace

std::vector<EvalSuite> load_suites(const std::string& model, const std::vector<std::string>& names) {
  std::vector<std::string> there;
  const fs::path folder = fs::path(model) / "eval";
  if (fs::is_directory(folder)) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".jsonl") there.push_back(entry.path().stem());
    }
  }
  std::sort(there.begin(), there.end());
  if (there.empty()) fail(ErrorCode::kUsage, "{}: no eval suites there (eval/*.jsonl)", model);
  std::vector<EvalSuite> suites;
  for (const std::string& name : names.empty() ? there : names) {
    if (std::find(there.begin(), there.end(), name) == there.end()) {
      fail(ErrorCode::kUsage, "unknown suite '{}'; {} has {}", name, model, fmt::join(there, ", "));
    }
    EvalSuite suite{.name = name, .items = {}};
    const fs::path path = folder / (name + ".jsonl");
    std::istringstream file(read_file(path.string()));
    std::map<std::string, std::string> documents;
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      if (line.empty()) continue;
      const std::string where = fmt::format("{}:{}", path.string(), number);
      const boost::json::object o = parse_line(line, where);
      if (o.contains("text")) {
        documents[text_of(o, "document")] = text_of(o, "text");
      } else {
        suite.items.push_back(parse_item(o, documents, where));
      }
    }
    if (suite.items.empty())
      fail(ErrorCode::kBadFile, "{}: the file holds no question; each line is one", path.string());
    suites.push_back(std::move(suite));
  }
  return suites;
}

bool is_correct(const ParsedMessage& message, const boost::json::object& answer) {
  const std::string type = boost::json::value_to<std::string>(answer.at("type"));
  boost::system::error_code error;
  if (type == "text") {
    return message.tool_calls.empty() &&
           trimmed(message.content) == trimmed(boost::json::value_to<std::string>(answer.at("text")));
  }
  if (type == "json") {
    const boost::json::value got = boost::json::parse(trimmed(message.content), error);
    return !error && got == answer.at("value");
  }
  if (type != "tool_calls")
    fail(ErrorCode::kBadFile, "answer type '{}': must be text, json or tool_calls", type);
  const boost::json::array& calls = answer.at("calls").as_array();
  if (calls.size() != message.tool_calls.size()) return false;
  for (size_t i = 0; i < calls.size(); ++i) {
    const boost::json::value arguments = boost::json::parse(message.tool_calls[i].arguments, error);
    if (error || message.tool_calls[i].name != calls[i].at("name").as_string() ||
        arguments != calls[i].at("arguments")) {
      return false;
    }
  }
  return true;
}

std::string describe(const ParsedMessage& message) {
  std::string text = message.content;
  for (const auto& call : message.tool_calls) text += fmt::format(" call {}({})", call.name, call.arguments);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace perigee::cli
