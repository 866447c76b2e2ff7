// Structural tags, and calls in K2's format: what they take and what they refuse.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <functional>
#include <random>

#include "base/error.h"
#include "text/chat.h"
#include "text/grammar_sources.h"
#include "vocabularies.h"

namespace perigee {
namespace {

namespace json = boost::json;
using testing::wordy_tokenizer;

const Tokenizer& tokenizer() {
  static const Tokenizer made = wordy_tokenizer(ControlFamily::kK3);
  return made;
}

bool takes(const std::string& tag, std::string_view text) {
  static const auto tree = std::make_shared<const TokenTree>(tokenizer().vocabulary());
  Grammar grammar;
  grammar.new_rule();
  const Grammar::Symbol symbol = structural_tag(grammar, json::parse(tag), tokenizer().vocabulary());
  grammar.add(0, {symbol});
  GrammarMachine machine(std::move(grammar), tree, {});
  const GrammarMachine::State* state = machine.start();
  for (int32_t id : tokenizer().encode(text))
    if (!(state = machine.after(state, id))) return false;
  return machine.whole(state);
}

struct Case {
  const char* tag;
  std::vector<const char*> good, bad;
};

TEST(StructuralTag, Texts) {
  const Case cases[] = {
      {R"t({"type":"structural_tag","triggers":["<f"],"structures":[{"begin":"<f=a>","schema":{"type":"integer"},"end":"</f>"},{"begin":"<f=b>","schema":{"type":"boolean"},"end":"</f>"}]})t",
       {"", "free < text", "<f=a>12</f>", "so <f=a>-1</f> and <f=b>true</f>.", "<<f=b>false</f>", "<"},
       {"<f", "<f=c>1</f>", "<f=a>true</f>", "<f=a>1", "x<f=a>1</f><f=b>1</f>"}},
      {R"t({"format":{"type":"triggered_tags","triggers":["[["],"tags":[{"begin":"[[","content":{"type":"any_text"},"end":"]]"}],"at_least_one":true,"stop_after_first":true}})t",
       {"[[x]]", "a[b [[x] y]]", "[[]]"},
       {"", "a", "[[x]", "[[x]]y", "[[x]]]]"}},
      {R"t({"format":{"type":"triggered_tags","triggers":["<a","<ab"],"tags":[{"begin":"<ab>","content":{"type":"const_string","value":"1"},"end":""}],"excludes":["no"]}})t",
       {"yes <ab>1 n o"},
       {"no", "<ab>1no", "<a>"}},
      {R"t({"format":{"type":"tags_with_separator","separator":", ","tags":[{"begin":"(","content":{"type":"regex","pattern":"[0-9]+"},"end":[")","!"]}],"at_least_one":true}})t",
       {"(1)", "(1), (22!, (3)"},
       {"", "(1)(2)", "(1), "}},
      {R"t({"format":{"type":"sequence","elements":[{"type":"optional","content":{"type":"const_string","value":"a"}},{"type":"or","elements":[{"type":"grammar","grammar":"root ::= \"b\" root | \"c\""},{"type":"plus","content":{"type":"const_string","value":"d"}}]}]}})t",
       {"abbc", "c", "ddd", "ad"},
       {"a", "abd", ""}},
      {R"t({"format":{"type":"any_text","excludes":["aab"]}})t", {"", "aa", "abab"}, {"aab", "xaaab"}},
  };
  for (const Case& c : cases) {
    for (const char* good : c.good) EXPECT_TRUE(takes(c.tag, good)) << c.tag << "\n" << good;
    for (const char* bad : c.bad) EXPECT_FALSE(takes(c.tag, bad)) << c.tag << "\n" << bad;
  }
}

TEST(StructuralTag, WhatCannotBeIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "not an object"},
      {"{}", "neither format nor structures"},
      {R"t({"format":{"type":"dance"}})t", "\"dance\""},
      {R"t({"format":{"type":"const_string"}})t", "lacks value"},
      {R"t({"format":{"type":"sequence","elements":[]}})t", "has no elements"},
      {R"t({"format":{"type":"json_schema","json_schema":{},"style":"qwen_xml"}})t", "style"},
      {R"t({"format":{"type":"json_schema","json_schema":{"minimum":1}}})t", "minimum"},
      {R"t({"triggers":["<"],"structures":[{"begin":"(","schema":{},"end":")"}]})t",
       "with which no tag begins"},
      {R"t({"triggers":["<"],"structures":[{"begin":"<","schema":{},"end":""},{"begin":"(","schema":{},"end":")"}]})t",
       "none of the triggers"},
      {R"t({"format":{"type":"tag","begin":"<|open|>tools","content":{"type":"any_text"},"end":"x"}})t",
       "<|open|>"},
      {R"t({"format":{"type":"tag","begin":"a","content":{"type":"any_text"},"end":5}})t", "end"},
  };
  for (const auto& [tag, words] : cases) try {
      takes(tag, "");
      ADD_FAILURE() << tag;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadRequest);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
}

// Random answers within the grammar, as the model might write them: their calls are declared ones, and valid.
TEST(K2Grammar, RandomAnswersHoldDeclaredCalls) {
  const Tokenizer k2 = wordy_tokenizer(ControlFamily::kK2);
  const auto format = make_chat_format(k2);
  const auto tree = std::make_shared<const TokenTree>(k2.vocabulary());
  const json::value parameters = json::parse(
      R"t({"type":"object","properties":{"city":{"enum":["Oslo","Rome"]},"days":{"type":"integer"}},"required":["city"],"additionalProperties":false})t");
  std::mt19937 random(3);
  for (int walk = 0; walk < 60; ++walk) {
    Grammar grammar;
    grammar.new_rule();
    AnswerShape shape{.thinking = false, .must_call = true, .one_call = walk % 3 == 0};
    shape.tools = {{"get_weather", &parameters}, {"now", nullptr}};
    format->answer_grammar(grammar, shape);
    GrammarMachine machine(std::move(grammar), tree, format->stop_ids());
    const auto parser = format->parser(false);
    const std::vector<int32_t> stops = format->stop_ids();
    const GrammarMachine::State* state = machine.start();
    for (int i = 0;; ++i) {
      ASSERT_LT(i, 3000);
      const std::vector<int32_t>& allowed = machine.allowed(state);
      ASSERT_FALSE(allowed.empty());
      std::vector<int32_t> controls;
      for (int32_t id : allowed)
        if (k2.vocabulary().is_control(id)) controls.push_back(id);
      const int32_t id = !controls.empty() && random() % 3 != 0 ? controls[random() % controls.size()]
                                                                : allowed[random() % allowed.size()];
      state = machine.after(state, id);
      ASSERT_TRUE(state);
      parser->push(id);
      if (std::find(stops.begin(), stops.end(), id) != stops.end()) break;
    }
    const ParsedMessage message = parser->finish();
    ASSERT_FALSE(message.tool_calls.empty()) << message.content;
    if (shape.one_call) {
      EXPECT_EQ(message.tool_calls.size(), 1u);
    }
    for (const ToolCall& call : message.tool_calls) {
      const json::object arguments = json::parse(call.arguments).as_object();
      if (call.name == "get_weather") {
        EXPECT_TRUE(arguments.at("city") == "Oslo" || arguments.at("city") == "Rome");
      } else {
        EXPECT_EQ(call.name, "now");
        EXPECT_TRUE(arguments.empty());
      }
    }
  }
}

}  // namespace
}  // namespace perigee
