// The parser of K3's XTML answers. It starts inside `think` or `response`. Elements are recognised by the ids
// of <|open|>,
// <|close|> and <|sep|>, so that text which only looks like mark-up stays text; a tool call counts once its
// own close has come, since bodies are not escaped and only that close tells a whole call from a cut one.
// Text never holds a part of a tag: a tag or a call that the end of the answer cuts is not shown.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/detokenizer.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace perigee {

class K3OutputParser : public OutputParser {
 public:
  K3OutputParser(const Tokenizer& tokenizer, bool thinking, std::string_view call_id_salt = {});

 protected:
  void on_token(int32_t id, Delta& delta) override;
  void on_end(Delta& delta) override;

 private:
  enum class Place { kMessage, kThink, kResponse, kTools, kCall, kArgument, kJson };
  struct Tag {
    std::string name;
    std::vector<std::pair<std::string, std::string>> attributes;
    const std::string* attribute(std::string_view key) const;
  };
  // The call being read. `raw` is all of its tokens' text, given out as content if the call never becomes
  // one.
  struct Call {
    std::string raw, name, arguments;  // arguments: the members of a JSON object so far
    std::string key, type, value;      // of the argument being read
    std::set<std::string> keys;        // of the arguments so far
    bool has_json = false;             // an element of raw JSON came
    bool broken = false;
  };

  static bool parse_tag(std::string_view text, Tag& tag);
  static std::string_view name_of(Place place);
  void text(std::string_view bytes, Delta& delta);
  void release(std::string_view bytes, Delta& delta);
  void abandon_tag(Delta& delta);
  void end_tag(Delta& delta);
  bool open(const Tag& tag);
  bool close(const Tag& tag, std::string_view literal, Delta& delta);
  void end_call(Delta& delta);

  Tokenizer tokenizer_;
  int32_t open_, close_, sep_, end_, eos_;
  CallIds call_ids_;
  Place place_;
  int32_t marker_ = -1;  // open_ or close_ while a tag is being read
  std::string tag_;      // its bytes so far
  Call call_;
  Utf8Stream stream_;  // of the place's text
};

}  // namespace perigee
