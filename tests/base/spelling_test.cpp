// Distances between words, and the hint that they give.
#include "base/spelling.h"

#include <gtest/gtest.h>

#include <random>

namespace perigee {

namespace {

// The definition, without a table.
size_t plain_distance(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return a.size() + b.size();
  const size_t replaced = plain_distance(a.substr(1), b.substr(1)) + (a[0] != b[0]);
  return std::min({replaced, plain_distance(a.substr(1), b) + 1, plain_distance(a, b.substr(1)) + 1});
}

}  // namespace

TEST(Spelling, KnownDistances) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("same", "same"), 0u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("flaw", "lawn"), 2u);
  EXPECT_EQ(edit_distance("ab", "ba"), 2u);
}

TEST(Spelling, DistanceIsTheDefinitions) {
  std::mt19937 random(1);
  const auto word = [&] {
    std::string out;
    for (size_t n = random() % 7; n > 0; --n) out += "abc"[random() % 3];
    return out;
  };
  for (int round = 0; round < 1000; ++round) {
    const std::string a = word(), b = word();
    ASSERT_EQ(edit_distance(a, b), plain_distance(a, b)) << a << ' ' << b;
  }
}

TEST(Spelling, NearestWord) {
  const std::vector<std::string> known = {"generate", "chat", "inspect", "eval", "bench"};
  EXPECT_EQ(nearest_word("generat", known), "generate");
  EXPECT_EQ(nearest_word("evil", known, 2), "eval");
  EXPECT_EQ(nearest_word("xyz", known, 1), "");  // none is that near
  EXPECT_EQ(nearest_word("chat", known, 1), "chat");
  EXPECT_EQ(nearest_word("ba", {"ab", "aa", "bb"}), "aa");  // the first of equals
  EXPECT_EQ(nearest_word("x", {}), "");
}

}  // namespace perigee
