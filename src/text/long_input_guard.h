// The reference tokenizer's guard for long inputs: text is cut every 400 000 characters, and inside those so
// that no run of white space, or of anything else, is longer than 25 000 characters. Each part is tokenised
// alone, so the cuts are part of the ids' definition; they also bound what one match or one merge can cost.
#pragma once

#include <cstddef>
#include <string_view>

#include "text/utf8.h"

namespace perigee {

inline constexpr size_t kGuardPart = 400'000;  // characters
inline constexpr size_t kGuardRun = 25'000;    // characters

// Python's str.isspace, by which the reference tells runs apart. Wider than the pattern's \s by
// U+001C..U+001F.
inline bool is_python_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// Calls emit(part) for the parts of well-formed `text`, in order; none for an empty text.
template <typename Emit>
void guard_long_input(std::string_view text, Emit&& emit) {
  if (text.size() <= kGuardRun) {
    if (!text.empty()) emit(text);
    return;
  }
  size_t begin = 0, characters = 0, run = 0;
  bool run_is_space = false;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text.substr(at));
    const bool space = is_python_space(step.codepoint);
    if (characters == kGuardPart) {
      emit(text.substr(begin, at - begin));
      begin = at;
      characters = run = 0;
    } else if (space == run_is_space && run == kGuardRun) {
      emit(text.substr(begin, at - begin));
      begin = at;
      run = 0;
    }
    run = space == run_is_space ? run + 1 : 1;
    run_is_space = space;
    ++characters;
    at += step.length;
  }
  emit(text.substr(begin));
}

}  // namespace perigee
