// The seam between OpenAI-style messages and a model family's prompt: a format renders messages to segments
// and parses the model's answer back, by token id. K3's XTML and K2's turns are the two formats.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace perigee {

struct ChatOptions {
  bool thinking = true;
  std::optional<std::string> thinking_effort =
      std::nullopt;  // low, medium, high or max; none: the prompt does not mention it
  const boost::json::array* tools = nullptr;            // OpenAI's tool objects
  std::string tool_choice = "";                         // "", "auto", "required" or "none"
  const boost::json::value* response_format = nullptr;  // OpenAI's object
  bool add_generation_prompt = true;
};

// What an answer must be, for structured output.
struct AnswerShape {
  bool thinking = true;
  std::optional<Grammar::Symbol> content;  // of the text; none: any text
  struct Tool {
    std::string name;
    const boost::json::value* parameters;  // a JSON schema; null: no arguments
  };
  std::vector<Tool> tools;  // those that may be called, and no others
  bool must_call = false, one_call = false;
};

class ChatFormat {
 public:
  virtual ~ChatFormat() = default;

  // Throws Error{kBadRequest} naming the message and what was expected, Error{kUnsupported} for images.
  virtual std::vector<Segment> render(const boost::json::array& messages,
                                      const ChatOptions& options) const = 0;

  // A parser for the answer to one rendered prompt. `call_id_salt` makes tool-call ids differ between
  // requests.
  virtual std::unique_ptr<OutputParser> parser(bool thinking, std::string_view call_id_salt = {}) const = 0;

  // Fills rule 0 of `grammar`: what follows the prompt, up to the id that ends it.
  virtual void answer_grammar(Grammar& grammar, const AnswerShape& shape) const = 0;

  // Ids that end the answer.
  virtual std::vector<int32_t> stop_ids() const = 0;
};

// The format whose control tokens the vocabulary holds; Error{kUnsupported} when it holds neither's.
std::unique_ptr<ChatFormat> make_chat_format(const Tokenizer& tokenizer);

// The two behind it.
std::unique_ptr<ChatFormat> make_k3_format(const Tokenizer& tokenizer);
std::unique_ptr<ChatFormat> make_k2_format(const Tokenizer& tokenizer);

}  // namespace perigee
