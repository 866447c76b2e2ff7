// The parser of K2-style answers (Kimi-Linear, K2 Thinking): <think>…</think>, text, and a section of tool
// calls, all told apart by token id.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/detokenizer.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace perigee {

class K2OutputParser : public OutputParser {
 public:
  K2OutputParser(const Tokenizer& tokenizer, bool thinking, std::string_view call_id_salt = {});

 protected:
  void on_token(int32_t id, Delta& delta) override;
  void on_end(Delta& delta) override;

 private:
  enum class Place { kThink, kContent, kSection, kCallName, kArguments };

  void text(std::string_view bytes, Delta& delta);
  void enter(Place place, Delta& delta);
  void drop_call(Delta& delta);
  void end_call(Delta& delta);

  Tokenizer tokenizer_;
  int32_t think_, think_end_, section_, section_end_, call_begin_, arguments_begin_, call_end_, im_end_, eos_;
  CallIds call_ids_;
  Place place_;
  std::string call_name_, arguments_;  // bytes of the call being read
  Utf8Stream stream_;
};

}  // namespace perigee
