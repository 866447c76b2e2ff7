#include "serve/body_fields.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "base/error.h"

namespace perigee::serve {
namespace {

std::string complaint(const std::function<void()>& task) {
  try {
    task();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kBadRequest);
    return e.what();
  }
  return "";
}

TEST(BodyFields, TakesOneJsonObject) {
  EXPECT_EQ(parse_body("{\"a\": 1}").size(), 1u);
  for (const char* bad : {"", "[]", "1", "{\"a\":}", "{} {}", "{\"a\": 1,}", "\xff", "{\"\xff\": 1}"})
    EXPECT_NE(complaint([&] { parse_body(bad); }), "") << bad;
  const auto nested = [](size_t levels) {
    return "{\"a\":" + std::string(levels - 1, '[') + std::string(levels - 1, ']') + "}";
  };
  EXPECT_EQ(complaint([&] { parse_body(nested(kJsonDepth)); }), "");
  EXPECT_NE(complaint([&] { parse_body(nested(kJsonDepth + 1)); }).find("deeper than 64"), std::string::npos);
  EXPECT_NE(complaint([&] { parse_body(nested(1000000)); }).find("deeper than 64"), std::string::npos);
}

TEST(BodyFields, NamesTheFieldTheValueAndWhatIsAllowed) {
  const boost::json::object object = parse_body(
      R"({"i": 3, "d": 2.0, "half": 2.5, "big": 99, "huge": 18446744073709551615, "s": "x", "n": null, "b": true, "l": ["a", 1], "o": {}})");
  BodyFields f(object, "outer.");
  EXPECT_EQ(f.integer("i", 0, 5), 3);
  EXPECT_EQ(f.integer("d", 0, 5), 2);
  EXPECT_EQ(f.integer("n", 0, 5), std::nullopt);
  EXPECT_EQ(f.integer("absent", 0, 5), std::nullopt);
  EXPECT_EQ(f.number("half", 0, 5), 2.5);
  EXPECT_EQ(complaint([&] { f.integer("half", 0, 5); }),
            "outer.half is 2.5; expected a whole number from 0 to 5");
  EXPECT_EQ(complaint([&] { f.integer("big", 0, 5); }),
            "outer.big is 99; expected a whole number from 0 to 5");
  EXPECT_NE(complaint([&] { f.integer("huge", 0, 5); }), "");
  EXPECT_EQ(complaint([&] { f.number("s", 0, 1); }), "outer.s is \"x\"; expected a number from 0 to 1");
  EXPECT_EQ(complaint([&] { f.boolean("i"); }), "outer.i is 3; expected true or false");
  EXPECT_EQ(complaint([&] { f.choice("s", {"y", "z"}); }), "outer.s is \"x\"; expected one of y, z");
  EXPECT_NE(complaint([&] { f.strings("l", 9); }), "");
  EXPECT_NE(complaint([&] { f.array("l", 1); }).find("2 entries; at most 1"), std::string::npos);
  EXPECT_NE(complaint([&] { f.token_ids("l", 10); }).find("outer.l[0] is \"a\""), std::string::npos);
  EXPECT_NE(complaint([&] { f.unsupported("b", "leave it out"); }), "");
  EXPECT_EQ(complaint([&] { f.unsupported("n", "leave it out"); }), "");
  EXPECT_EQ(complaint([&] { f.unsupported("o", "leave it out"); }), "");
}

TEST(BodyFields, KnowsWhatNobodyAskedFor) {
  const boost::json::object object = parse_body(R"({"a": 1, "b": 2, "c": null})");
  BodyFields f(object, "");
  f.integer("a", 0, 9);
  f.ignore("c");
  EXPECT_EQ(f.unknown(), std::vector<std::string>{"b"});
}

}  // namespace
}  // namespace perigee::serve
