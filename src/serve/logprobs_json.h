// Log-probabilities in the shapes of OpenAI's two APIs.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <span>
#include <string>

#include "engine/request.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace perigee::serve {

// The shortest decimal of an fp32; -9999 for one that JSON cannot say.
double logprob_number(float x);
// A token's bytes as text; ill-formed parts as U+FFFD.
std::string token_text(const Tokenizer& tokenizer, int32_t id);

// How a token is named: by its text, or as "token_id:123" (vLLM's return_tokens_as_token_ids).
enum class TokenNames { kText, kIds };

// chat: content[{token, logprob, bytes, top_logprobs}]. The bytes of all tokens are the bytes of the text.
boost::json::array chat_logprobs(const Tokenizer& tokenizer, std::span<const GeneratedToken> tokens,
                                 int alternatives, TokenNames names = TokenNames::kText);

// completions: {tokens, token_logprobs, top_logprobs, text_offset}, grown token by token. An offset is where
// the token's first character stands in the text, in characters: of tokens that make one together, all have
// its place, and control tokens that the text leaves out have that of what follows.
class CompletionLogprobs {
 public:
  struct Options {
    int alternatives = 0;
    TokenNames names = TokenNames::kText;
    bool show_control = false;  // the text has control tokens by name
  };
  CompletionLogprobs(const Tokenizer& tokenizer, Options options)
      : tokenizer_(tokenizer),
        options_(options),
        prompt_(tokenizer_.vocabulary(), Detokenizer::Control::kShow),
        answer_(tokenizer_.vocabulary(),
                options.show_control ? Detokenizer::Control::kShow : Detokenizer::Control::kSkip) {}
  CompletionLogprobs(const CompletionLogprobs&) = delete;

  // An echoed prompt: its first token, which has no log-probability, and those after it.
  void add_prompt(int32_t first, std::span<const GeneratedToken> rest);
  void add(const GeneratedToken& token) { add(token, answer_); }
  // What was added since the last take.
  boost::json::object take();

 private:
  void add(const GeneratedToken& token, Detokenizer& text);
  void add_name(int32_t id, Detokenizer& text);
  void go_on(const std::string& text);

  Tokenizer tokenizer_;
  Options options_;
  Detokenizer prompt_, answer_;
  int64_t offset_ = 0;  // in characters
  boost::json::array tokens_, token_logprobs_, top_, offsets_;
};

// vLLM's prompt_logprobs: null for the first token, then {id: {logprob, rank, decoded_token}}.
boost::json::array prompt_logprobs_json(const Tokenizer& tokenizer, std::span<const GeneratedToken> tokens);

}  // namespace perigee::serve
