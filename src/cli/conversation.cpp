#include "cli/conversation.h"

#include <algorithm>
#include <filesystem>

#include "base/read_file.h"
#include "text/chat_messages.h"

namespace perigee::cli {

namespace {
Tokenizer load_tokenizer(const std::string& folder) {
  if (!std::filesystem::is_directory(folder)) {
    const std::vector<std::string> names = builtin_config_names();
    const bool builtin = std::find(names.begin(), names.end(), folder) != names.end();
    fail(ErrorCode::kUsage, "{}: {}", folder,
         builtin ? "a built-in config has no tokenizer, so there is no text to read or write; give a model "
                   "folder, or --load-format dummy to `generate` and `bench`"
                 : "not a model folder; give a folder with config.json, tiktoken.model and safetensors");
  }
  return Tokenizer::load(folder);
}
}  // namespace

ChatModel::ChatModel(const std::string& folder)
    : folder_(folder), tokenizer_(load_tokenizer(folder)), format_(make_chat_format(tokenizer_)) {}

void ChatModel::check_fits(const ModelConfig& config) const {
  const int32_t size = tokenizer_.vocabulary().size();
  if (size == config.vocab_size) return;
  fail(ErrorCode::kBadFile,
       "{}: tiktoken.model and its control tokens make {} tokens, but config.json has vocab_size {}; take "
       "both "
       "files from one checkpoint",
       folder_, size, config.vocab_size);
}

std::vector<int32_t> ChatModel::prompt(const boost::json::array& messages, const ChatOptions& options) const {
  return tokenizer_.encode(format_->render(messages, options));
}

std::vector<int32_t> ChatModel::stop_ids(const ModelConfig& config) const {
  std::vector<int32_t> ids = format_->stop_ids();
  for (int64_t id : config.eos_token_ids) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

ParsedMessage ChatModel::parse(const Generation& generation, bool thinking) const {
  const auto parser = format_->parser(thinking);
  for (const GeneratedToken& t : generation.tokens) parser->push(t.id);
  return parser->finish();
}

Delta AnswerStream::push(int32_t token) {
  ++tokens_;
  return give(parser_->push(token), false);
}

Delta AnswerStream::flush() { return give(parser_->flush(), true); }

Delta AnswerStream::give(Delta delta, bool at_end) {
  if (stopped()) return {};
  delta.content = tokens_ < min_tokens_ ? stops_.push_unchecked(delta.content) : stops_.push(delta.content);
  if (at_end) delta.content += stops_.flush();
  message_.reasoning += delta.reasoning;
  message_.content += delta.content;
  message_.tool_calls.insert(message_.tool_calls.end(), delta.tool_calls.begin(), delta.tool_calls.end());
  return delta;
}

boost::json::array read_tools(const std::string& file) {
  const std::string where = "--tools " + file;
  boost::system::error_code error;
  const boost::json::value json = boost::json::parse(read_file(file, ErrorCode::kUsage, where), error);
  if (error)
    fail(ErrorCode::kUsage, "{}: not JSON ({}); give an array of OpenAI tool objects", where,
         error.message());
  if (!json.is_array()) fail(ErrorCode::kUsage, "{}: must hold an array of OpenAI tool objects", where);
  const boost::json::array& tools = json.get_array();
  check_tools(tools, ErrorCode::kUsage, where);
  return tools;
}

boost::json::array tool_calls_json(const ParsedMessage& message) {
  boost::json::array calls;
  for (const auto& call : message.tool_calls) {
    calls.push_back({{"id", call.id},
                     {"type", "function"},
                     {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return calls;
}

}  // namespace perigee::cli
