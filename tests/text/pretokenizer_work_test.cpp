// Pre-tokenising a text takes work linear in its length, whatever the text. Work is counted, not timed: the
// backtracking steps of a PCRE2 match, how far it looks, and the characters that the matcher by hand reads.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <gtest/gtest.h>
#include <pcre2.h>

#include <algorithm>
#include <string>

#include "text/ascii_pretokenizer.h"
#include "text/long_input_guard.h"
#include "text/pretokenizer.h"

namespace perigee {
namespace {

// Of the kinds of work below together. The worst text here, of two-byte pieces, takes 22; a match that runs
// to the end of a part from every position would take thousands.
constexpr size_t kPerByte = 40;

// Matches by PCRE2's interpreter, which takes the same way through the pattern as the JIT code and can be
// told to stop.
class CountedMatch {
 public:
  explicit CountedMatch(std::string_view pattern) {
    int error = 0;
    size_t at = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &at, nullptr);
    data_ = pcre2_match_data_create(1, nullptr);
    context_ = pcre2_match_context_create(nullptr);
  }
  ~CountedMatch() {
    pcre2_match_context_free(context_);
    pcre2_match_data_free(data_);
    pcre2_code_free(code_);
  }
  CountedMatch(const CountedMatch&) = delete;

  // Length of the match, and the steps it takes, to a power of two.
  size_t match(std::string_view text, size_t at, size_t* steps) {
    for (uint32_t limit = 1;; limit *= 2) {
      pcre2_set_match_limit(context_, limit);
      const int rc = run(text, at, 0);
      if (rc == PCRE2_ERROR_MATCHLIMIT) continue;
      EXPECT_GE(rc, 0) << "at " << at;
      *steps += limit;
      return rc < 0 ? text.size() - at : pcre2_get_ovector_pointer(data_)[1] - at;
    }
  }

  // How many bytes from `at` on decide the match, to a power of two: with so many it never looks for more.
  size_t reach(std::string_view text, size_t at) {
    pcre2_set_match_limit(context_, UINT32_MAX);
    for (size_t bytes = 1;; bytes *= 2) {
      size_t end = std::min(text.size(), at + bytes);
      while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;  // whole characters
      if (end == text.size() || run(text.substr(0, end), at, PCRE2_PARTIAL_HARD) != PCRE2_ERROR_PARTIAL)
        return end - at;
    }
  }

 private:
  int run(std::string_view text, size_t at, uint32_t options) {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                       PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT | options, data_, context_);
  }

  pcre2_code* code_;
  pcre2_match_data* data_;
  pcre2_match_context* context_;
};

struct CountedText {
  std::string_view text;
  size_t* reads;
  size_t size() const { return text.size(); }
  char operator[](size_t at) const {
    ++*reads;
    return text[at];
  }
};

std::string repeated(std::string_view unit, size_t size) {
  std::string out;
  while (out.size() < size) out += unit;
  return out;
}

// `count` of `many`, then `last`, over and over.
std::string runs(std::string_view many, size_t count, std::string_view last, size_t size) {
  std::string unit;
  for (size_t i = 0; i < count; ++i) unit += many;
  return repeated(unit + std::string(last), size);
}

struct Hard {
  const char* name;
  std::string text;
};

std::vector<Hard> hard_texts(size_t size) {
  std::vector<Hard> out = {{"one word", repeated("a", size)},
                           {"one upper-case word", repeated("A", size)},
                           {"changing case", repeated("aB", size)},
                           {"letters of no case", repeated("ª", size)},
                           {"letters of every kind", repeated("Aaǅʰªé\u0301", size)},
                           {"combining marks", repeated("\u0301", size)},
                           {"Chinese", repeated("中", size)},
                           {"Chinese and capitals", repeated("A中", size)},
                           {"digits", repeated("1", size)},
                           {"symbols", repeated("!", size)},
                           {"symbols beyond ASCII", repeated("。", size)},
                           {"apostrophes", repeated("'", size)},
                           {"contractions", repeated("'ll", size)},
                           {"nearly contractions", repeated("a'r", size)},
                           {"spaces", repeated(" ", size)},
                           {"wide spaces", repeated("\u3000", size)},
                           {"line ends", repeated("\n", size)},
                           {"spaces and line ends", repeated(" \n", size)},
                           {"emoji", repeated("🙂\u200d", size)}};
  // Long runs, each ended by what makes a greedy match give back.
  for (const size_t run : {size_t{30}, size_t{1000}, kGuardRun - 1}) {
    out.push_back({"spaces before a letter", runs(" ", run, "x", size)});
    out.push_back({"a line end and spaces before a letter", runs(" ", run, "x\n", size)});
    out.push_back({"spaces before a letter beyond ASCII", runs(" ", run, "é", size)});
    out.push_back({"capitals before Chinese", runs("A", run, "中", size)});
    out.push_back({"capitals beyond ASCII before a digit", runs("É", run, "1", size)});
    out.push_back({"marks before a digit", runs("\u0301", run, "1", size)});
    out.push_back({"symbols before a letter beyond ASCII", runs("!", run, "é", size)});
  }
  return out;
}

// Work of cutting `text` up as Tokenizer does, both matchers tried at every piece.
size_t work(std::string_view text) {
  static const Pretokenizer pretokenizer;
  static CountedMatch pcre2(Pretokenizer::pattern());
  size_t total = 0;
  guard_long_input(text, [&](std::string_view part) {
    const AsciiPretokenizer ascii(CountedText{part, &total});
    for (size_t at = 0; at < part.size();) {
      const size_t by_hand = ascii.match(at);
      const size_t length = pcre2.match(part, at, &total);
      ASSERT_EQ(length, pretokenizer.match(part, at));
      if (by_hand > 0) {
        ASSERT_EQ(length, by_hand);
      }
      total += pcre2.reach(part, at);
      at += length;
    }
  });
  return total;
}

void expect_linear(const Hard& hard) {
  const size_t total = work(hard.text), size = hard.text.size();
  EXPECT_GE(total, size) << hard.name;  // every byte was looked at
  EXPECT_LE(total, kPerByte * size) << hard.name << ", " << size << " bytes";
}

}  // namespace

TEST(PretokenizerWork, IsLinearInHardTexts) {
  for (const Hard& hard : hard_texts(100'000)) expect_linear(hard);
}

TEST(PretokenizerWork, IsLinearInAWordOfAMegabyte) {
  for (const char* unit : {"a", "A", "aB"}) expect_linear({unit, repeated(unit, 1'000'000)});
}

TEST(PretokenizerWork, CountsStepsAndReach) {
  CountedMatch quadratic("a*b|a");  // runs to the end of the text from every position
  CountedMatch backtracking("(?:a|aa)+b|a");
  const std::string text(2000, 'a');
  size_t steps = 0, reach = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    EXPECT_EQ(quadratic.match(text, at, &steps), 1u);
    reach += quadratic.reach(text, at);
  }
  EXPECT_GT(reach, 10 * kPerByte * text.size());
  steps = 0;
  EXPECT_EQ(backtracking.match(std::string_view(text).substr(0, 26), 0, &steps), 1u);
  EXPECT_GT(steps, 10 * kPerByte * 26);
}

}  // namespace perigee
