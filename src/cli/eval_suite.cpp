#include "cli/eval_suite.h"

#include <algorithm>
#include <filesystem>
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

EvalItem parse_item(const std::string& line, const std::string& where) {
  boost::system::error_code error;
  const boost::json::value json = boost::json::parse(line, error);
  if (error || !json.is_object()) fail(ErrorCode::kBadFile, "{}: not a JSON object", where);
  const boost::json::object& o = json.as_object();
  const auto* messages = o.if_contains("messages");
  const auto* answer = o.if_contains("answer");
  if (!messages || !messages->is_array() || !answer || !answer->is_object()) {
    fail(ErrorCode::kBadFile, "{}: needs \"messages\" (array) and \"answer\" (object)", where);
  }
  EvalItem item;
  if (const auto* id = o.if_contains("id"); id && id->is_string()) item.id = id->as_string().c_str();
  item.messages = messages->as_array();
  if (const auto* tools = o.if_contains("tools"); tools && tools->is_array()) item.tools = tools->as_array();
  if (const auto* thinking = o.if_contains("thinking"); thinking && thinking->is_bool())
    item.thinking = thinking->as_bool();
  if (const auto* n = o.if_contains("max_tokens"); n && n->is_int64())
    item.max_tokens = static_cast<int>(n->as_int64());
  item.answer = answer->as_object();
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
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      if (!line.empty()) suite.items.push_back(parse_item(line, fmt::format("{}:{}", path.string(), number)));
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
