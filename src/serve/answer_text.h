// One answer from token ids to what the API shows of it: text, reasoning, tool calls, and why it ended. The
// same object serves streamed and whole answers, so that the deltas joined are the whole.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "text/detokenizer.h"
#include "text/output_parser.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"

namespace perigee::serve {

struct AnswerOptions {
  std::vector<std::string> stops;  // end the text; in chat, that of the content alone
  bool include_stop = false;       // the stop string, or stop token, is part of the text
  int min_tokens = 0;              // stops count after so many
  std::vector<int32_t> stop_ids;   // of the request's own; reported as its stop_reason
  bool show_control = false;       // completions: control tokens by name
  bool one_call = false;           // the answer ends with its first tool call
};

// What some tokens added to an answer.
struct AnswerDelta {
  std::string reasoning, content;
  std::vector<ToolCall> calls;
  std::vector<GeneratedToken> tokens;      // those behind it
  std::string finish;                      // "" while more will come, else OpenAI's finish_reason
  std::optional<std::string> stop_string;  // that ended it
  std::optional<int32_t> stop_id;

  // There is something to show: not only tokens whose text is still held back.
  bool visible() const { return !reasoning.empty() || !content.empty() || !calls.empty() || !finish.empty(); }
  void append(AnswerDelta next);
};

class AnswerText {
 public:
  // With a parser the tokens are a chat answer; without, plain text.
  AnswerText(const Tokenizer& tokenizer, std::unique_ptr<OutputParser> parser, const AnswerOptions& options);

  // The next tokens, the last of them ending the answer unless `finish` is kNone. Empty once it has ended.
  AnswerDelta push(std::span<const GeneratedToken> tokens, FinishReason finish);
  // The answer is over for AnswerText, perhaps before the engine knows: a stop string came.
  bool ended() const { return ended_; }
  int64_t tokens() const { return tokens_; }  // up to its end

 private:
  void text(Delta piece, AnswerDelta& delta);
  void end(AnswerDelta& delta, std::string_view reason);

  Tokenizer tokenizer_;
  std::unique_ptr<OutputParser> parser_;
  Detokenizer detokenizer_;
  AnswerOptions options_;
  StopStrings stops_;
  int64_t tokens_ = 0;
  bool called_ = false, ended_ = false;
};

}  // namespace perigee::serve
