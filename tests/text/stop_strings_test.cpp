// Stop strings: the same text and the same stop wherever the stream is cut, and nothing of a stop given out.
#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/philox.h"

namespace perigee {
namespace {

struct Result {
  std::string text, stop;
  bool operator==(const Result&) const = default;
};

// From the definition: the shortest prefix that ends in a stop, the longest such stop.
Result expected(const std::string& text, const std::vector<std::string>& stops, bool include) {
  for (size_t n = 1; n <= text.size(); ++n) {
    std::string found;
    for (const std::string& stop : stops) {
      if (text.substr(0, n).ends_with(stop) && stop.size() > found.size()) found = stop;
    }
    if (!found.empty()) return {text.substr(0, include ? n : n - found.size()), found};
  }
  return {text, ""};
}

Result streamed(const std::string& text, const std::vector<std::string>& stops, bool include, uint64_t seed) {
  StopStrings stream(stops, include);
  std::string out;
  for (size_t at = 0, step = 0; at < text.size(); ++step) {
    const size_t n = seed == 0 ? text.size() : random_words(seed, 0, step, 0)[0] % 4;
    out += stream.push(std::string_view(text).substr(at, n));
    at += n;
  }
  out += stream.flush();
  return {out, stream.found()};
}

TEST(StopStrings, EveryCutGivesTheDefinition) {
  const std::vector<std::vector<std::string>> sets = {
      {"stop"}, {"abc", "b"}, {"aab", "ab", "b"}, {"aaaa"}, {"ü", "\xc3"}, {"a", "aa"}, {"abab", "abc"}, {}};
  for (const auto& stops : sets) {
    for (uint64_t seed = 0; seed < 400; ++seed) {
      std::string text;
      for (int i = 0; i < 24; ++i) {
        const std::string parts[] = {"a", "b", "c", "stop", "ü", "sto"};
        text += parts[random_words(seed, 1, i, 0)[0] % (seed % 2 ? 6 : 3)];
      }
      for (bool include : {false, true}) {
        const Result want = expected(text, stops, include);
        EXPECT_EQ(streamed(text, stops, include, 0), want) << text;
        EXPECT_EQ(streamed(text, stops, include, seed + 1), want) << text;
      }
    }
  }
}

TEST(StopStrings, GivesOutWhatCannotBecomeAStop) {
  StopStrings stream({"END"});
  EXPECT_EQ(stream.push("abc"), "abc");
  EXPECT_EQ(stream.push("dE"), "d");
  EXPECT_EQ(stream.push("N"), "");
  EXPECT_EQ(stream.push("x"), "ENx");
  EXPECT_EQ(stream.push("END more"), "");
  EXPECT_EQ(stream.found(), "END");
  EXPECT_EQ(stream.push("later"), "");
}

TEST(StopStrings, UncheckedTextNeverStops) {
  StopStrings stream({"ab"});
  EXPECT_EQ(stream.push_unchecked("ab a"), "ab a");
  EXPECT_EQ(stream.push("b"), "b");  // the "a" before it went out unchecked
  EXPECT_EQ(stream.found(), "");
}

TEST(StopStrings, RefusesTheEmptyString) { EXPECT_THROW(StopStrings({"a", ""}), Error); }

}  // namespace
}  // namespace perigee
