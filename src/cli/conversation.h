// One question to a chat model: messages to tokens, tokens to reasoning, text and tool calls, streamed or
// whole.
#pragma once

#include <boost/json.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/generate.h"
#include "text/chat.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"

namespace perigee::cli {

// The tokenizer and chat format of a model folder.
class ChatModel {
 public:
  explicit ChatModel(const std::string& folder);

  const Tokenizer& tokenizer() const { return tokenizer_; }
  const ChatFormat& format() const { return *format_; }

  // Throws Error{kBadFile} unless the model's ids are exactly the tokenizer's: a folder put together from two
  // checkpoints would answer in other words than it means.
  void check_fits(const ModelConfig& config) const;

  std::vector<int32_t> prompt(const boost::json::array& messages, const ChatOptions& options) const;
  // Stop ids of the chat format and of the config.
  std::vector<int32_t> stop_ids(const ModelConfig& config) const;
  ParsedMessage parse(const Generation& generation, bool thinking) const;

 private:
  std::string folder_;
  Tokenizer tokenizer_;
  std::unique_ptr<ChatFormat> format_;
};

// An answer as its tokens arrive: parsed, and its content ended before a stop string.
class AnswerStream {
 public:
  // Stops count after `min_tokens` tokens.
  AnswerStream(std::unique_ptr<OutputParser> parser, std::vector<std::string> stops, int min_tokens)
      : parser_(std::move(parser)), stops_(std::move(stops)), min_tokens_(min_tokens) {}

  Delta push(int32_t token);
  bool stopped() const { return !stops_.found().empty(); }
  // What was held back at the end.
  Delta flush();
  // Everything given out so far.
  const ParsedMessage& message() const { return message_; }

 private:
  Delta give(Delta delta, bool at_end);

  std::unique_ptr<OutputParser> parser_;
  StopStrings stops_;
  int min_tokens_, tokens_ = 0;
  ParsedMessage message_;
};

// Reads a JSON array of OpenAI tool objects.
boost::json::array read_tools(const std::string& file);

// Tool calls as OpenAI's API spells them.
boost::json::array tool_calls_json(const ParsedMessage& message);

}  // namespace perigee::cli
