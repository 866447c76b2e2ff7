// Merging, pre-tokenising and the tokenizer on top of them. Equality with tiktoken is
// test_tiktoken_oracle.py's part.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "base/error.h"
#include "text/bpe.h"
#include "text/long_input_guard.h"
#include "text/pretokenizer.h"
#include "vocabularies.h"

namespace perigee {
namespace {

using testing::byte_tokenizer;
using testing::control;
using testing::make_vocabulary;
using testing::wordy_tokenizer;

std::vector<std::string> split(std::string_view text) {
  static const Pretokenizer pretokenizer;
  std::vector<std::string> pieces;
  pretokenizer.split(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

std::vector<std::string> split_by_pcre2(std::string_view text) {
  static const Pretokenizer pretokenizer;
  std::vector<std::string> pieces;
  for (size_t at = 0; at < text.size();) {
    pieces.emplace_back(text.substr(at, pretokenizer.match(text, at)));
    at += pieces.back().size();
  }
  return pieces;
}

using Pieces = std::vector<std::string>;

TEST(Pretokenizer, ThePatternsRules) {
  EXPECT_EQ(split("Hello world"), (Pieces{"Hello", " world"}));
  EXPECT_EQ(split("don't WE'LL it'S x'y"), (Pieces{"don't", " WE'LL", " it'S", " x", "'y"}));
  EXPECT_EQ(split("HTTPServer fooBar"), (Pieces{"HTTPServer", " foo", "Bar"}));
  EXPECT_EQ(split("12345 67"), (Pieces{"123", "45", " ", "67"}));
  EXPECT_EQ(split("a  b\n\n c \n"), (Pieces{"a", " ", " b", "\n\n", " c", " \n"}));
  EXPECT_EQ(split("x   "), (Pieces{"x", "   "}));
  EXPECT_EQ(split(" (foo) !?\r\n."), (Pieces{" (", "foo", ")", " !?\r\n", "."}));
  EXPECT_EQ(split("\tif"), (Pieces{"\tif"}));
  EXPECT_EQ(split("你好世界hello"), (Pieces{"你好世界", "hello"}));
  EXPECT_EQ(split("中。文"), (Pieces{"中", "。", "文"}));          // 。 has Han only as a script extension
  EXPECT_EQ(split("日本のテスト"), (Pieces{"日本", "のテスト"}));  // kana are letters, not Han
  EXPECT_EQ(split("cafe\u0301 x"), (Pieces{"cafe\u0301", " x"}));
  EXPECT_EQ(split("it'ſ a"), (Pieces{"it'ſ", " a"}));  // U+017F folds to s
  EXPECT_EQ(split("a\u180Eb"), (Pieces{"a", "\u180Eb"}));
  EXPECT_EQ(split("\u3000\u3000a"), (Pieces{"\u3000", "\u3000a"}));
  EXPECT_EQ(split(""), Pieces{});
}

TEST(Pretokenizer, TheAsciiMatcherAgreesWithPcre2) {
  std::mt19937 random(1);
  const std::vector<std::string> symbols = {
      "a",  "Z",      "s",      "'",      "T", "r", "e",  "l",    "L",    " ",  " ",
      "\n", "\r",     "\t",     "1",      "9", ".", "(",  "\x1c", "\x7f", "é",  "中",
      "ſ",  "\u0301", "\u00a0", "\u0085", "ª", "²", "🙂", "。",   "\v",   "\f", std::string(1, '\0')};
  for (int round = 0; round < 60000; ++round) {
    const size_t alphabet = round % 3 == 0 ? 20 : symbols.size();  // a third is ASCII alone
    std::string text;
    for (size_t n = random() % 16; n > 0; --n) text += symbols[random() % alphabet];
    ASSERT_EQ(split(text), split_by_pcre2(text)) << ::testing::PrintToString(text);
  }
}

TEST(Pretokenizer, EveryAsciiTriple) {
  for (int a = 0; a < 128; ++a)
    for (int b = 0; b < 128; ++b)
      for (const char* tail : {"", "x", "\n", " ", "'s", "é"}) {
        const std::string text = std::string{static_cast<char>(a), static_cast<char>(b)} + tail;
        ASSERT_EQ(split(text), split_by_pcre2(text)) << a << ' ' << b << ' ' << tail;
      }
}

TEST(LongInputGuard, CutsByRunAndByLength) {
  const auto sizes = [](const std::string& text) {
    std::vector<size_t> out;
    guard_long_input(text, [&](std::string_view part) { out.push_back(part.size()); });
    return out;
  };
  using Sizes = std::vector<size_t>;
  EXPECT_EQ(sizes(""), Sizes{});
  EXPECT_EQ(sizes(std::string(25'000, 'a')), Sizes{25'000});
  EXPECT_EQ(sizes(std::string(25'001, 'a')), (Sizes{25'000, 1}));
  EXPECT_EQ(sizes("x" + std::string(25'001, ' ')), (Sizes{25'001, 1}));
  EXPECT_EQ(sizes(std::string(20'000, 'a') + " " + std::string(20'000, 'a')), Sizes{40'001});
  std::string words;
  for (int i = 0; i < 90'000; ++i) words += "abcd ";
  EXPECT_EQ(sizes(words), (Sizes{400'000, 50'000}));
  std::string chinese;  // counted in characters, not in bytes
  for (int i = 0; i < 30'000; ++i) chinese += "中";
  EXPECT_EQ(sizes(chinese), (Sizes{75'000, 15'000}));
}

// A vocabulary of random merges over a small alphabet: long pieces with many equal and overlapping pairs.
Vocabulary random_vocabulary(unsigned seed, size_t merges) {
  std::mt19937 random(seed);
  std::vector<std::string> pieces;
  std::set<std::string> known;
  for (int byte = 0; byte < 256; ++byte) pieces.push_back(std::string(1, static_cast<char>(byte)));
  std::vector<std::string> parts = {"a", "b", "c"};
  for (size_t tries = 0; tries < 100 * merges && pieces.size() < 256 + merges; ++tries) {
    const std::string merged = parts[random() % parts.size()] + parts[random() % parts.size()];
    if (merged.size() > 12 || !known.insert(merged).second) continue;
    parts.push_back(merged);
    pieces.push_back(merged);
  }
  return Vocabulary(pieces, ControlFamily::kK3);
}

TEST(Bpe, ShortAndLongMergesAgree) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const Vocabulary vocabulary = random_vocabulary(seed, 5 + 10 * seed);
    const Bpe bpe(vocabulary);
    std::mt19937 random(seed);
    for (int round = 0; round < 500; ++round) {
      std::string piece;
      const unsigned letters = 1 + random() % 3;
      for (size_t n = 1 + random() % Bpe::kShort; n > 0; --n) piece += "abc"[random() % letters];
      std::vector<int32_t> a, b;
      bpe.merge_short(piece, a);
      bpe.merge_long(piece, b);
      ASSERT_EQ(a, b) << piece;
    }
  }
}

TEST(Bpe, LeftmostOfEqualPairsMergesFirst) {
  const Vocabulary v = make_vocabulary(300, {{290, "aa"}}, ControlFamily::kK3);
  const Bpe bpe(v);
  std::vector<int32_t> ids;
  bpe.encode("aaa", ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{290, bpe.rank("a")}));
}

TEST(Bpe, NeedsAllBytes) {
  std::vector<std::string> pieces(300);
  for (int byte = 0; byte < 255; ++byte)
    pieces[static_cast<size_t>(byte)] = std::string(1, static_cast<char>(byte));
  const Vocabulary v(pieces, ControlFamily::kK3);
  EXPECT_THROW(Bpe{v}, Error);
}

TEST(Bpe, MergingIsLinearInTheNumberOfHeapEntries) {
  std::mt19937 random(2);
  for (const size_t merges : {size_t{20}, size_t{200}, size_t{1000}}) {
    const Vocabulary vocabulary = random_vocabulary(5, merges);
    const Bpe bpe(vocabulary);
    for (const unsigned letters : {1u, 2u, 3u}) {
      std::string word;
      for (int i = 0; i < 1'000'000; ++i) word += "abc"[random() % letters];
      for (const size_t n : {size_t{97}, size_t{10'000}, size_t{1'000'000}}) {
        std::vector<int32_t> ids;
        const size_t entries = bpe.merge_long(std::string_view(word).substr(0, n), ids);
        EXPECT_GE(entries, n - ids.size());  // every merge came from an entry
        EXPECT_LE(entries, 3 * n);
      }
    }
  }
}

TEST(Bpe, TheQuadraticLoopRefusesLongPieces) {
  const Vocabulary vocabulary = random_vocabulary(5, 20);
  std::vector<int32_t> ids;
  EXPECT_THROW(Bpe(vocabulary).merge_short(std::string(Bpe::kShort + 1, 'a'), ids), Error);
}

TEST(Tokenizer, TextNeverBecomesAControlToken) {
  for (ControlFamily family : {ControlFamily::kK2, ControlFamily::kK3}) {
    const Tokenizer tokenizer = wordy_tokenizer(family);
    std::string all;
    for (int32_t id = tokenizer.vocabulary().base_size(); id < tokenizer.vocabulary().size(); ++id) {
      const std::string name(tokenizer.vocabulary().bytes(id));
      for (int32_t token : tokenizer.encode(name))
        ASSERT_FALSE(tokenizer.vocabulary().is_control(token)) << name;
      EXPECT_EQ(tokenizer.encode(std::vector<Segment>{{name, true}}), std::vector<int32_t>{id});
      all += name;
    }
    const std::vector<int32_t> ids = tokenizer.encode(std::vector<Segment>{{all, false}});
    for (int32_t token : ids) ASSERT_FALSE(tokenizer.vocabulary().is_control(token));
    EXPECT_EQ(tokenizer.decode(ids), all);
  }
}

TEST(Tokenizer, SegmentsAreTokenisedAlone) {
  const Tokenizer tokenizer(make_vocabulary(300, {{280, "ab"}}, ControlFamily::kK3));
  EXPECT_EQ(tokenizer.encode("ab"), std::vector<int32_t>{280});
  const std::vector<int32_t> apart = tokenizer.encode(std::vector<Segment>{{"a", false}, {"b", false}});
  EXPECT_EQ(apart.size(), 2u);
  EXPECT_THROW(tokenizer.encode(std::vector<Segment>{{"<|nothing|>", true}}), Error);
}

TEST(Tokenizer, RoundTripsAllValidText) {
  const Tokenizer tokenizer = wordy_tokenizer(ControlFamily::kK3);
  std::mt19937 random(9);
  const std::vector<std::string> parts = {"hello", " world", "中", "你好",   "🙂",  "é",
                                          "\n",    "   ",    "x",  "\u0301", "1234"};
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (size_t n = random() % 20; n > 0; --n) text += parts[random() % parts.size()];
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
  EXPECT_TRUE(tokenizer.encode("").empty());
}

TEST(Tokenizer, IllFormedInputReadsAsReplacementCharacters) {
  const Tokenizer tokenizer = byte_tokenizer(ControlFamily::kK3);
  const auto seen = [&](std::string_view bytes) { return tokenizer.decode(tokenizer.encode(bytes)); };
  EXPECT_EQ(seen("a\xFFz"), "a\uFFFDz");
  EXPECT_EQ(seen("\xE4\xB8"), "\uFFFD");  // one for a cut character
  EXPECT_EQ(seen("\xE4\xB8x"), "\uFFFDx");
  EXPECT_EQ(seen("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // a surrogate
  EXPECT_EQ(seen("\xF0\x9F\x99\x82\x80"), "🙂\uFFFD");
  std::mt19937 random(4);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    for (size_t n = random() % 40; n > 0; --n) bytes += static_cast<char>(random());
    const std::string text = seen(bytes);
    ASSERT_TRUE(is_valid_utf8(text));
    ASSERT_EQ(text, replace_invalid_utf8(bytes));
  }
}

}  // namespace
}  // namespace perigee
