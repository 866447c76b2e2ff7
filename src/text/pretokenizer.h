// Cuts text into the pieces that BPE merges, by the pattern of the Kimi vocabularies: PCRE2 with JIT for any
// text, the hand-written matcher of ascii_pretokenizer.h where that gives the same answer.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "text/ascii_pretokenizer.h"

namespace perigee {

class Pretokenizer {
 public:
  Pretokenizer();
  ~Pretokenizer();
  Pretokenizer(const Pretokenizer&) = delete;

  // Calls emit(piece) for the pieces of well-formed UTF-8 `text`; together they are the whole text.
  // Thread-safe.
  template <typename Emit>
  void split(std::string_view text, Emit&& emit) const {
    const AsciiPretokenizer ascii(text);
    for (size_t at = 0; at < text.size();) {
      size_t length = ascii.match(at);
      if (length == 0) length = match(text, at);
      emit(text.substr(at, length));
      at += length;
    }
  }

  // Length of the pattern's match at `at` (< text.size()), by PCRE2 alone.
  size_t match(std::string_view text, size_t at) const;

  // The pattern as PCRE2 reads it, anchored, with PCRE2_UTF and PCRE2_UCP.
  static std::string_view pattern();

 private:
  struct Pattern;
  std::unique_ptr<Pattern> pattern_;
};

}  // namespace perigee
