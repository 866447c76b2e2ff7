#include "serve/answer_text.h"

#include <algorithm>
#include <iterator>

namespace perigee::serve {

void AnswerDelta::append(AnswerDelta next) {
  reasoning += next.reasoning;
  content += next.content;
  std::move(next.calls.begin(), next.calls.end(), std::back_inserter(calls));
  std::move(next.tokens.begin(), next.tokens.end(), std::back_inserter(tokens));
  if (!next.finish.empty()) {
    finish = std::move(next.finish);
    stop_string = std::move(next.stop_string);
    stop_id = next.stop_id;
  }
}

AnswerText::AnswerText(const Tokenizer& tokenizer, std::unique_ptr<OutputParser> parser,
                       const AnswerOptions& options)
    : tokenizer_(tokenizer),
      parser_(std::move(parser)),
      detokenizer_(tokenizer_.vocabulary(),
                   options.show_control ? Detokenizer::Control::kShow : Detokenizer::Control::kSkip),
      options_(options),
      stops_(options.stops, options.include_stop) {}

AnswerDelta AnswerText::push(std::span<const GeneratedToken> tokens, FinishReason finish) {
  AnswerDelta delta;
  for (size_t i = 0; i < tokens.size() && !ended_; ++i) {
    const int32_t id = tokens[i].id;
    ++tokens_;
    delta.tokens.push_back(tokens[i]);
    const bool stop_token = finish == FinishReason::kStop && i + 1 == tokens.size();
    if (stop_token && !options_.include_stop) {
      const bool own =
          std::find(options_.stop_ids.begin(), options_.stop_ids.end(), id) != options_.stop_ids.end();
      if (own) delta.stop_id = id;
      break;
    }
    Delta piece;
    if (parser_)
      piece = parser_->push(id);
    else
      piece.content = detokenizer_.push(id);
    text(std::move(piece), delta);
    if (stops_.found().empty() && options_.one_call && called_) end(delta, "tool_calls");
  }
  if (ended_ || finish == FinishReason::kNone) return delta;
  Delta rest;
  if (parser_)
    rest = parser_->flush();
  else
    rest.content = detokenizer_.flush();
  text(std::move(rest), delta);
  if (ended_) return delta;
  delta.content += stops_.flush();
  end(delta, finish == FinishReason::kLength ? "length" : called_ ? "tool_calls" : "stop");
  return delta;
}

void AnswerText::text(Delta piece, AnswerDelta& delta) {
  delta.reasoning += piece.reasoning;
  delta.content +=
      tokens_ < options_.min_tokens ? stops_.push_unchecked(piece.content) : stops_.push(piece.content);
  if (!stops_.found().empty()) {
    delta.stop_string = stops_.found();
    return end(delta, "stop");
  }
  if (options_.one_call && !piece.tool_calls.empty()) piece.tool_calls.resize(1);
  called_ |= !piece.tool_calls.empty();
  std::move(piece.tool_calls.begin(), piece.tool_calls.end(), std::back_inserter(delta.calls));
}

void AnswerText::end(AnswerDelta& delta, std::string_view reason) {
  ended_ = true;
  delta.finish = reason;
}

}  // namespace perigee::serve
