// Small vocabularies for the tests: all 256 bytes, chosen pieces, and the steps that merge bytes to those
// pieces.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace perigee::testing {

// A vocabulary of `base_size` ranks with `fixed` pieces at their ranks. Single bytes, and the prefixes
// through which a fixed piece is built, fill ranks that `fixed` does not use.
inline Vocabulary make_vocabulary(size_t base_size, const std::map<int32_t, std::string>& fixed,
                                  ControlFamily family) {
  std::vector<std::string> pieces(base_size);
  std::set<std::string> known;
  for (const auto& [rank, piece] : fixed) {
    pieces[static_cast<size_t>(rank)] = piece;
    known.insert(piece);
  }
  size_t free = 0;
  const auto add = [&](const std::string& piece) {
    if (!known.insert(piece).second) return;
    while (!pieces[free].empty()) ++free;
    pieces[free] = piece;
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const auto& [rank, piece] : fixed)
    for (size_t n = 2; n < piece.size(); ++n) add(piece.substr(0, n));
  return Vocabulary(pieces, family);
}

inline Tokenizer byte_tokenizer(ControlFamily family) { return Tokenizer(make_vocabulary(600, {}, family)); }

// Merges such as a trained vocabulary has, for tests that need pieces of several bytes.
inline Tokenizer wordy_tokenizer(ControlFamily family) {
  const std::vector<std::string> words = {"message", "assistant", "think",    "response", "tools",  "call",
                                          " tool",   "=\"",       " index",   "argument", " key",   " type",
                                          "string",  "get",       " the",     "hello",    " world", "中",
                                          "你好",    "🙂",        "\xF0\x9F", "é",        "number", "\n\n"};
  std::map<int32_t, std::string> fixed;
  for (size_t i = 0; i < words.size(); ++i) fixed[static_cast<int32_t>(400 + i)] = words[i];
  return Tokenizer(make_vocabulary(600, fixed, family));
}

inline int32_t control(const Tokenizer& tokenizer, std::string_view name) {
  return tokenizer.vocabulary().control_id(name).value();
}

}  // namespace perigee::testing
