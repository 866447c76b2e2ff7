#include "serve/logprobs_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "text/utf8.h"

namespace perigee::serve {

namespace json = boost::json;

double logprob_number(float x) {
  if (!std::isfinite(x)) return -9999.0;
  return std::strtod(fmt::format("{}", x).c_str(), nullptr);
}

std::string token_text(const Tokenizer& tokenizer, int32_t id) {
  return replace_invalid_utf8(tokenizer.vocabulary().bytes(id));
}

namespace {

std::string name_of(const Tokenizer& tokenizer, int32_t id, TokenNames names) {
  return names == TokenNames::kIds ? fmt::format("token_id:{}", id) : token_text(tokenizer, id);
}

json::object entry(const Tokenizer& tokenizer, int32_t id, float logprob, TokenNames names) {
  json::array bytes;
  for (const char c : tokenizer.vocabulary().bytes(id)) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", name_of(tokenizer, id, names)},
          {"logprob", logprob_number(logprob)},
          {"bytes", std::move(bytes)}};
}

}  // namespace

json::array chat_logprobs(const Tokenizer& tokenizer, std::span<const GeneratedToken> tokens,
                          int alternatives, TokenNames names) {
  json::array out;
  for (const GeneratedToken& t : tokens) {
    json::object one = entry(tokenizer, t.id, t.logprob, names);
    json::array top;
    for (size_t i = 0; i < std::min<size_t>(t.top.size(), static_cast<size_t>(alternatives)); ++i)
      top.push_back(entry(tokenizer, t.top[i].first, t.top[i].second, names));
    one["top_logprobs"] = std::move(top);
    out.push_back(std::move(one));
  }
  return out;
}

void CompletionLogprobs::go_on(const std::string& text) {
  for (const char c : text) offset_ += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
}

void CompletionLogprobs::add_name(int32_t id, Detokenizer& text) {
  const std::string_view bytes = tokenizer_.vocabulary().bytes(id);
  const bool shown = &text == &prompt_ || options_.show_control || !tokenizer_.vocabulary().is_control(id);
  const bool begins = !bytes.empty() && (static_cast<unsigned char>(bytes[0]) & 0xC0) != 0x80;
  if (shown && begins) go_on(text.flush());  // a character that never came to its end ends here
  tokens_.push_back(json::string(name_of(tokenizer_, id, options_.names)));
  offsets_.push_back(offset_);
  go_on(text.push(id));
}

void CompletionLogprobs::add_prompt(int32_t first, std::span<const GeneratedToken> rest) {
  add_name(first, prompt_);
  token_logprobs_.push_back(nullptr);
  top_.push_back(nullptr);
  for (const GeneratedToken& token : rest) add(token, prompt_);
  go_on(prompt_.flush());
}

void CompletionLogprobs::add(const GeneratedToken& token, Detokenizer& text) {
  add_name(token.id, text);
  token_logprobs_.push_back(logprob_number(token.logprob));
  // Several tokens may read the same: the likeliest stands for them. The drawn one is always there, as vLLM
  // has it.
  const auto name = [&](int32_t id) { return name_of(tokenizer_, id, options_.names); };
  json::object top;
  for (size_t i = 0; i < std::min<size_t>(token.top.size(), static_cast<size_t>(options_.alternatives)); ++i)
    top.emplace(name(token.top[i].first), logprob_number(token.top[i].second));
  top.emplace(name(token.id), logprob_number(token.logprob));
  top_.push_back(std::move(top));
}

json::object CompletionLogprobs::take() {
  json::object out = {{"tokens", std::move(tokens_)},
                      {"token_logprobs", std::move(token_logprobs_)},
                      {"top_logprobs", std::move(top_)},
                      {"text_offset", std::move(offsets_)}};
  tokens_ = {};
  token_logprobs_ = {};
  top_ = {};
  offsets_ = {};
  return out;
}

json::array prompt_logprobs_json(const Tokenizer& tokenizer, std::span<const GeneratedToken> tokens) {
  json::array out;
  out.push_back(nullptr);
  for (const GeneratedToken& t : tokens) {
    json::object one;
    const auto add = [&](int32_t id, float logprob, json::value rank) {
      one.emplace(std::to_string(id), json::object{{"logprob", logprob_number(logprob)},
                                                   {"rank", std::move(rank)},
                                                   {"decoded_token", token_text(tokenizer, id)}});
    };
    int rank = 0;
    for (const auto& [id, logprob] : t.top) add(id, logprob, ++rank);
    add(t.id, t.logprob, nullptr);  // kept only when it is not among the likeliest
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace perigee::serve
