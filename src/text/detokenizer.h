// Ids to text while they arrive. Bytes are held back only while they begin a character that later tokens may
// complete, so the text never ends inside a character, and the bytes given out are together exactly the bytes
// of the tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "text/utf8.h"
#include "text/vocabulary.h"

namespace perigee {

// Cuts a stream of bytes at character boundaries. Ill-formed bytes pass through as they are.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes) {
    held_ += bytes;
    const size_t tail = unfinished_utf8_tail(held_);
    std::string out = held_.substr(0, held_.size() - tail);
    held_.erase(0, out.size());
    return out;
  }
  // The bytes still held: a character that never came to its end.
  std::string flush() { return std::exchange(held_, {}); }

 private:
  std::string held_;
};

// Use either the bytes or the text functions of one object. The text is what JSON and terminals can carry:
// the bytes with ill-formed parts as U+FFFD. Cuts lie between characters, so the texts joined are the
// replaced whole.
class Detokenizer {
 public:
  enum class Control { kSkip, kShow };  // show control tokens by name, or leave them out

  explicit Detokenizer(const Vocabulary& vocabulary, Control control = Control::kSkip)
      : vocabulary_(vocabulary), control_(control) {}

  std::string push_bytes(int32_t id) {
    const std::string_view bytes = vocabulary_.bytes(id);
    return stream_.push(vocabulary_.is_control(id) && control_ == Control::kSkip ? std::string_view()
                                                                                 : bytes);
  }
  std::string flush_bytes() { return stream_.flush(); }

  std::string push(int32_t id) { return replace_invalid_utf8(push_bytes(id)); }
  std::string flush() { return replace_invalid_utf8(flush_bytes()); }

 private:
  const Vocabulary& vocabulary_;
  Control control_;
  Utf8Stream stream_;
};

}  // namespace perigee
