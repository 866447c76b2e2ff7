// Log-probabilities in the shapes of OpenAI's two APIs.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <span>
#include <string>

#include "engine/request.h"
#include "text/tokenizer.h"

namespace perigee::serve {

// The shortest decimal of an fp32; -9999 for one that JSON cannot say.
double logprob_number(float x);
// A token's bytes as text; ill-formed parts as U+FFFD.
std::string token_text(const Tokenizer& tokenizer, int32_t id);

// chat: content[{token, logprob, bytes, top_logprobs}]. The bytes of all tokens are the bytes of the text.
boost::json::array chat_logprobs(const Tokenizer& tokenizer, std::span<const GeneratedToken> tokens,
                                 int alternatives);

// completions: {tokens, token_logprobs, top_logprobs, text_offset}, grown token by token.
class CompletionLogprobs {
 public:
  CompletionLogprobs(const Tokenizer& tokenizer, int alternatives)
      : tokenizer_(tokenizer), alternatives_(alternatives) {}
  // The first token of an echoed prompt, which has no log-probability.
  void add_first(int32_t id);
  void add(const GeneratedToken& token);
  // What was added since the last take.
  boost::json::object take();

 private:
  void add_text(int32_t id);

  Tokenizer tokenizer_;
  int alternatives_;
  int64_t offset_ = 0;  // in characters
  boost::json::array tokens_, token_logprobs_, top_, offsets_;
};

// vLLM's prompt_logprobs: null for the first token, then {id: {logprob, rank, decoded_token}}.
boost::json::array prompt_logprobs_json(const Tokenizer& tokenizer, std::span<const GeneratedToken> tokens);

}  // namespace perigee::serve
