// UTF-8 by the rules of the Unicode standard's table 3-7: one step at a time, whole-text checks, and the
// replacement of ill-formed bytes by U+FFFD exactly as Python's errors="replace" does (one per maximal
// subpart).
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace perigee {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Utf8Step {
  enum Kind : uint8_t { kValid, kInvalid, kIncomplete };
  Kind kind;
  uint8_t length;      // bytes of the character, of the ill-formed part, or of the unfinished tail
  char32_t codepoint;  // when valid
};

// Looks at the first character of `s`, which is not empty. kIncomplete: `s` ends inside a so far well-formed
// character.
inline Utf8Step utf8_step(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Utf8Step::kValid, 1, lead};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Step::kInvalid, 1, 0};
  const uint8_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and code points above U+10FFFF.
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  char32_t codepoint = lead & (0xFF >> (length + 1));
  for (uint8_t i = 1; i < length; ++i) {
    if (i == s.size()) return {Utf8Step::kIncomplete, i, 0};
    if (byte(i) < (i == 1 ? low : 0x80) || byte(i) > (i == 1 ? high : 0xBF))
      return {Utf8Step::kInvalid, i, 0};
    codepoint = codepoint << 6 | (byte(i) & 0x3F);
  }
  return {Utf8Step::kValid, length, codepoint};
}

// Length of the leading run of ASCII bytes.
inline size_t ascii_prefix(std::string_view s) {
  size_t i = 0;
  for (uint64_t word; i + 8 <= s.size(); i += 8) {
    std::memcpy(&word, s.data() + i, 8);
    if (word & 0x8080808080808080u) break;
  }
  while (i < s.size() && static_cast<uint8_t>(s[i]) < 0x80) ++i;
  return i;
}

// Length of the longest prefix that is well-formed.
inline size_t valid_utf8_prefix(std::string_view s) {
  size_t i = 0;
  while (true) {
    i += ascii_prefix(s.substr(i));
    if (i == s.size()) return i;
    const Utf8Step step = utf8_step(s.substr(i));
    if (step.kind != Utf8Step::kValid) return i;
    i += step.length;
  }
}

inline bool is_valid_utf8(std::string_view s) { return valid_utf8_prefix(s) == s.size(); }

// `s` with every ill-formed part replaced by U+FFFD.
inline std::string replace_invalid_utf8(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  while (true) {
    const size_t good = valid_utf8_prefix(s);
    out.append(s.substr(0, good));
    s.remove_prefix(good);
    if (s.empty()) return out;
    out.append(kReplacement);
    s.remove_prefix(utf8_step(s).length);
  }
}

// How many bytes at the end of `s` begin a character that later bytes may still complete (0..3).
inline size_t unfinished_utf8_tail(std::string_view s) {
  for (size_t tail = 1; tail <= 3 && tail <= s.size(); ++tail) {
    const uint8_t byte = static_cast<uint8_t>(s[s.size() - tail]);
    if (byte < 0x80) return 0;
    if (byte >= 0xC0) return utf8_step(s.substr(s.size() - tail)).kind == Utf8Step::kIncomplete ? tail : 0;
  }
  return 0;
}

}  // namespace perigee
