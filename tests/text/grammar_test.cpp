// Grammars: what they take and what they refuse, against what the sources say.
#include "text/grammar.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>
#include <regex>
#include <tuple>

#include "base/error.h"
#include "text/chat.h"
#include "text/grammar_record.h"
#include "text/grammar_sources.h"

namespace perigee {
namespace {

namespace json = boost::json;

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load("models/tiny-k31");
  return loaded;
}
const std::shared_ptr<const TokenTree>& tree() {
  static const auto made = std::make_shared<const TokenTree>(tokenizer().vocabulary());
  return made;
}
int32_t control(std::string_view name) { return *tokenizer().vocabulary().control_id(name); }

// A text that is one symbol.
class Text {
 public:
  explicit Text(const std::function<Grammar::Symbol(Grammar&)>& make) {
    Grammar grammar;
    grammar.new_rule();
    const Grammar::Symbol symbol = make(grammar);
    grammar.add(0, {symbol});
    machine_ = std::make_unique<GrammarMachine>(std::move(grammar), tree(),
                                                std::vector<int32_t>{control("<|end_of_msg|>")});
  }
  // Token by token, each among those allowed; at the end the text must be whole.
  bool takes(const std::vector<int32_t>& ids) {
    const GrammarMachine::State* state = machine_->start();
    for (int32_t id : ids) {
      const std::vector<int32_t>& allowed = machine_->allowed(state);
      const bool listed = std::binary_search(allowed.begin(), allowed.end(), id);
      state = machine_->after(state, id);
      EXPECT_EQ(listed, state != nullptr) << id;  // the list and the machine say the same
      if (!state) return false;
    }
    return machine_->whole(state);
  }
  bool takes(std::string_view text) { return takes(tokenizer().encode(text)); }
  GrammarMachine& machine() { return *machine_; }

 private:
  std::unique_ptr<GrammarMachine> machine_;
};

Text of_schema(const std::string& schema) {
  return Text([&](Grammar& g) {
    const json::value value = json::parse(schema);
    return json_schema(g, value, value);
  });
}
Text of_regex(const std::string& pattern) {
  return Text([&](Grammar& g) { return regular_expression(g, pattern, any_ascii()); });
}
std::string complaint(const std::function<void()>& task) {
  try {
    task();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kBadRequest);
    return e.what();
  }
  return "";
}

struct Case {
  const char* source;
  std::vector<const char*> good, bad;
};

TEST(Grammar, JsonSchemas) {
  const Case cases[] = {
      {"{}",
       {"1", "\"a\"", "[1, [2,{}]]", "{\"a\": {\"b\":null}}", "-0.5e+10", "true"},
       {"", "01", "[1,]", "{a:1}", "nul", "\"\n\"", "1 2"}},
      {R"({"type":"integer"})", {"0", "-12", "123456789012345678"}, {"1.5", "1e3", "--1", "007", "\"1\""}},
      {R"({"type":["number","null"]})", {"1.5", "null", "-3e5"}, {".5", "1.", "true"}},
      {R"({"type":"string"})",
       {"\"\"", "\"a\\n\\u00e9 é 東\"", "\"\\\"\""},
       {"\"a", "a", "\"\\x\"", "\"\t\""}},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {"\"ab\"", "\"é東x\"", "\"\\n\\t\""},
       {"\"a\"", "\"abcd\""}},
      {R"({"type":"string","pattern":"^[a-c]+-\\d{2}$"})",
       {"\"abc-12\""},
       {"\"abd-12\"", "\"abc-1\"", "\"-12\""}},
      {R"({"enum":["a b",1,null,{"x":[1]}]})",
       {"\"a b\"", "1", "null", "{\"x\": [1]}"},
       {"\"a\"", "2", "{}"}},
      {R"({"const":"only"})", {"\"only\""}, {"\"on\"", "only"}},
      {R"({"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":3})",
       {"[true]", "[true, false,true]"},
       {"[]", "[true,true,true,true]", "[1]"}},
      {R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":{}},"required":["b"],"additionalProperties":false})",
       {R"({"b":"x"})", R"({"a": 1, "b": "x"})", R"({"a":1,"b":"x","c":[2]})", R"({"b":"x","c":1})",
        "{\n  \"b\": \"x\"\n}"},
       {"{}", R"({"a":1})", R"({"b":1})", R"({"b":"x","a":1})", R"({"b":"x","d":1})", R"({"b":"x",})",
        R"({"a":1 "b":"x"})"}},
      {R"({"type":"object","properties":{"a":{"type":"null"}},"additionalProperties":false})",
       {"{}", R"({"a":null})"},
       {R"({"b":null})"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"}})",
       {"{}", R"({"x":1,"y":2})"},
       {R"({"x":"1"})"}},
      {R"({"type":"object","required":["q"]})", {R"({"q":[]})"}, {"{}"}},
      {R"({"anyOf":[{"type":"integer"},{"type":"string","enum":["x"]}]})", {"3", "\"x\""}, {"\"y\"", "true"}},
      {R"({"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","properties":{"v":{"type":"integer"},"kids":{"type":"array","items":{"$ref":"#/$defs/tree"}}},"required":["v","kids"],"additionalProperties":false}}})",
       {R"({"v":1,"kids":[]})", R"({"v":1,"kids":[{"v":2,"kids":[{"v":3,"kids":[]}]}]})"},
       {R"({"v":1})", R"({"v":1,"kids":[1]})"}},
  };
  for (const Case& c : cases) {
    Text text = of_schema(c.source);
    for (const char* good : c.good) EXPECT_TRUE(text.takes(good)) << c.source << "\n" << good;
    for (const char* bad : c.bad) EXPECT_FALSE(text.takes(bad)) << c.source << "\n" << bad;
  }
}

TEST(Grammar, SchemasThatCannotBeKeptAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type":"integer","minimum":3})", "minimum"},
      {R"({"type":"object","properties":{"a":{"oneOf":[{}]}}})", "#/properties/a has oneOf"},
      {R"({"type":"array","uniqueItems":true})", "uniqueItems"},
      {R"({"type":"thing"})", "\"thing\""},
      {R"({"type":5})", "type"},
      {R"({"$ref":"#/nowhere"})", "#/nowhere"},
      {R"({"$ref":"http://x"})", "$ref"},
      {R"({"enum":[]})", "enum"},
      {R"({"type":"integer","enum":["x"]})", "not of its type"},
      {R"({"type":"string","enum":["abc"],"maxLength":1})", "maxLength beside enum"},
      {R"({"anyOf":[{"type":"string"}],"type":"integer"})", "type beside anyOf"},
      {R"({"anyOf":[{"required":["a"]}],"properties":{"a":{}}})", "properties beside anyOf"},
      {R"({"type":"string","maxLength":100000})", "maxLength"},
      {R"({"type":"string","minLength":3,"maxLength":2})", "minLength above maxLength"},
      {R"s({"type":"string","pattern":"(?=a)"})s", "(?"},
      {R"({"$ref":"#"})", "no text"},
      {R"({"anyOf":[{"$ref":"#"}]})", "no text"},
      {R"({"type":"object","properties":{"a":{"$ref":"#/properties/a"}},"required":["a"]})", "no text"},
      {R"({"type":"array","items":{"type":"array","items":{"type":"array","items":{"type":"string","maxLength":16000},"minItems":9000},"minItems":9000},"minItems":16000})",
       "symbols"},
      {R"([])", "neither an object"},
  };
  for (const auto& [schema, word] : cases)
    EXPECT_NE(complaint([&] { of_schema(schema); }).find(word), std::string::npos)
        << schema << "\n"
        << complaint([&] { of_schema(schema); });
}

TEST(Grammar, RegularExpressionsAgreeWithTheStandardLibrary) {
  const char* patterns[] = {"a*b+c?", "(ab|cd)*e", "[a-c]{2,3}x", "\\d+(\\.\\d{1,2})?",
                            "[^ab]+", "a.c",       "(a|b|)c",     "\\w+@\\w+\\.(com|org)",
                            "x{0}y",  "\\(a\\)"};
  std::mt19937 random(5);
  const std::string alphabet = "abcdex.1@ (com)";
  int matched = 0;
  for (const char* pattern : patterns) {
    Text text = of_regex(pattern);
    const std::regex oracle(pattern, std::regex::ECMAScript);
    for (int i = 0; i < 1500; ++i) {
      std::string s;
      for (size_t n = random() % 7; n > 0; --n) s += alphabet[random() % alphabet.size()];
      const bool wanted = std::regex_match(s, oracle);
      matched += wanted;
      ASSERT_EQ(text.takes(s), wanted) << pattern << " on \"" << s << "\"";
    }
  }
  EXPECT_GT(matched, 100);
  for (const char* bad : {"(", ")", "[a", "a{2", "a{3,2}", "*a", "\\b", "(?<x>a)", "a{99999}", "[z-a]"})
    EXPECT_NE(complaint([&] { of_regex(bad); }), "") << bad;
}

// What has no end is not begun either: no state is a dead end.
TEST(Grammar, WaysWithoutAnEndAreNotTaken) {
  Text optional = of_schema(R"({"type":"object","properties":{"a":{"$ref":"#/properties/a"}}})");
  EXPECT_TRUE(optional.takes("{}"));
  const std::vector<int32_t> brace = tokenizer().encode("{");
  for (const int32_t id :
       optional.machine().allowed(optional.machine().after(optional.machine().start(), brace.at(0))))
    EXPECT_EQ(std::string(tokenizer().vocabulary().bytes(id)).find('"'), std::string::npos);
  Text loop = Text(
      [](Grammar& g) { return ebnf(g, "root ::= \"a\" | \"b\" more\nmore ::= \"c\" more | \"d\" more"); });
  EXPECT_EQ(loop.machine().allowed(loop.machine().start()), tokenizer().encode("a"));
  EXPECT_NE(
      complaint([&] { Text([](Grammar& g) { return ebnf(g, "root ::= \"a\" root"); }); }).find("no text"),
      std::string::npos);
  EXPECT_NE(complaint([&] {
              Text([](Grammar& g) { return ebnf(g, "root ::= root \"a\" | \"b\""); });
            }).find("left recursion"),
            std::string::npos);
}

// Ways through parts that may be empty, or through rules that say the same twice, do not multiply.
TEST(Grammar, AmbiguousSourcesCostNoMoreThanTheirSize) {
  std::string optional, doubled = "root ::= r0\n";
  for (int i = 0; i < 60; ++i) {
    optional += "(a?|b?)";
    doubled += fmt::format("r{} ::= r{} | r{}\n", i, i + 1, i + 1);
  }
  Text text = of_regex(optional + "c");
  EXPECT_TRUE(text.takes("c"));
  EXPECT_TRUE(text.takes(std::string(30, 'a') + std::string(30, 'b') + "c"));
  EXPECT_FALSE(text.takes(std::string(61, 'a') + "c"));
  Text rules = Text([&](Grammar& g) { return ebnf(g, doubled + "r60 ::= \"x\""); });
  EXPECT_TRUE(rules.takes("x"));
  EXPECT_FALSE(rules.takes("xx"));
  Text loops = of_regex("((a*b*)*|c*)*d");
  EXPECT_TRUE(loops.takes("abbaccbad"));
  EXPECT_FALSE(loops.takes("abe"));
}

// Thousands of ways at every place, which every byte of every token must be tried on.
TEST(Grammar, GrammarsThatTakeTooLongAreRefused) {
  Text text = of_regex("(a?b?.?){400}");
  EXPECT_NE(complaint([&] { text.machine().allowed(text.machine().start()); }).find("too long"),
            std::string::npos);
}

// Stacks that differ multiply all the same: that grammar is refused, and its request alone.
TEST(Grammar, GrammarsThatOutgrowTheirMemoryAreRefused) {
  std::string wide = "root ::= r0\n";
  for (int i = 0; i < 40; ++i) wide += fmt::format("r{} ::= r{} \"x\" | r{} \"y\"\n", i, i + 1, i + 1);
  EXPECT_NE(complaint([&] {
              Text([&](Grammar& g) { return ebnf(g, wide + "r40 ::= \"z\""); });
            }).find("ways to go on"),
            std::string::npos);
  Text brackets = Text([](Grammar& g) { return ebnf(g, "root ::= \"(\" root \")\" | [a-z]"); });
  const std::vector<int32_t> open = tokenizer().encode("(");
  ASSERT_EQ(open.size(), 1u);
  EXPECT_NE(complaint([&] {
              for (const GrammarMachine::State* state = brackets.machine().start();;)
                state = brackets.machine().after(state, open[0]);
            }).find("MiB of states"),
            std::string::npos);
}

TEST(Grammar, Ebnf) {
  const auto of = [](const std::string& source) { return Text([&](Grammar& g) { return ebnf(g, source); }); };
  Text sum = of("root ::= term (\"+\" term)*  # a sum\nterm ::= [0-9]+ | \"(\" root \")\"\n");
  for (const char* good : {"1", "1+22", "(1+2)+3", "((7))"}) EXPECT_TRUE(sum.takes(good)) << good;
  for (const char* bad : {"", "+", "1+", "(1", "1)"}) EXPECT_FALSE(sum.takes(bad)) << bad;
  for (const char* bad : {"", "a ::= \"x\"", "root ::= b", "root ::= \"x", "root = \"x\"",
                          "root ::= \"a\"\nroot ::= \"b\"", "root ::= root \"a\" | \"b\""})
    EXPECT_NE(complaint([&] { of(bad); }), "") << bad;
}

// Walks that draw allowed tokens at random end in texts that parse: no allowed token leads astray.
TEST(Grammar, RandomWalksGiveValidJson) {
  const std::string schema =
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":8},"age":{"type":"integer"},"tags":{"type":"array","items":{"enum":["a","b"]},"maxItems":3},"note":{"type":["string","null"],"maxLength":5}},"required":["name","age","tags"],"additionalProperties":false})";
  Text text = of_schema(schema);
  std::mt19937 random(9);
  const int32_t end = control("<|end_of_msg|>");
  for (int walk = 0; walk < 50; ++walk) {
    const GrammarMachine::State* state = text.machine().start();
    std::string made;
    for (int i = 0;; ++i) {
      ASSERT_LT(i, 500);
      const std::vector<int32_t>& allowed = text.machine().allowed(state);
      ASSERT_FALSE(allowed.empty()) << made;
      // A stop as soon as one may come; the walk is long enough without.
      const int32_t id =
          std::binary_search(allowed.begin(), allowed.end(), end) ? end : allowed[random() % allowed.size()];
      state = text.machine().after(state, id);
      ASSERT_TRUE(state);
      if (id == end) break;
      made += tokenizer().vocabulary().bytes(id);
    }
    EXPECT_TRUE(text.machine().allowed(state).empty());
    boost::system::error_code error;
    const json::value value = json::parse(made, error);
    ASSERT_FALSE(error) << made;
    EXPECT_TRUE(value.at("name").is_string() && value.at("age").is_int64() && value.at("tags").is_array())
        << made;
    EXPECT_LE(value.at("tags").as_array().size(), 3u);
  }
}

// Answers of the K3 format with forced calls, by random walks: the parser finds exactly declared calls in
// them.
TEST(Grammar, RandomK3AnswersHoldDeclaredCalls) {
  const auto format = make_chat_format(tokenizer());
  const json::value parameters = json::parse(
      R"({"type":"object","properties":{"city":{"type":"string","enum":["Oslo","Rome & \"x\""]},"days":{"type":"integer"},"on":{"type":"boolean"}},"required":["city"]})");
  std::mt19937 random(11);
  int with_days = 0;
  for (int walk = 0; walk < 60; ++walk) {
    const bool thinking = walk % 2 != 0;
    Grammar grammar;
    grammar.new_rule();
    AnswerShape shape{.thinking = thinking, .must_call = true, .one_call = walk % 3 == 0};
    shape.tools = {{"get_weather", &parameters}, {"a<b>&\"", nullptr}};
    format->answer_grammar(grammar, shape);
    GrammarMachine machine(std::move(grammar), tree(), format->stop_ids());
    const auto parser = format->parser(thinking);
    const GrammarMachine::State* state = machine.start();
    for (int i = 0;; ++i) {
      ASSERT_LT(i, 3000);
      const std::vector<int32_t>& allowed = machine.allowed(state);
      ASSERT_FALSE(allowed.empty());
      // Control tokens often, so that free text ends.
      std::vector<int32_t> controls;
      for (int32_t id : allowed)
        if (tokenizer().vocabulary().is_control(id)) controls.push_back(id);
      const bool take_control = !controls.empty() && random() % 3 != 0;
      const int32_t id =
          take_control ? controls[random() % controls.size()] : allowed[random() % allowed.size()];
      state = machine.after(state, id);
      ASSERT_TRUE(state);
      parser->push(id);
      if (id == control("<|end_of_msg|>") || id == control("[EOS]")) break;
    }
    const ParsedMessage message = parser->finish();
    ASSERT_FALSE(message.tool_calls.empty()) << message.content;
    if (shape.one_call) {
      EXPECT_EQ(message.tool_calls.size(), 1u);
    }
    for (const ToolCall& call : message.tool_calls) {
      const json::object arguments = json::parse(call.arguments).as_object();
      if (call.name == "get_weather") {
        EXPECT_TRUE(arguments.at("city") == "Oslo" || arguments.at("city") == "Rome & \"x\"");
        if (const json::value* days = arguments.if_contains("days")) with_days += days->is_int64();
      } else {
        EXPECT_EQ(call.name, "a<b>&\"");
        EXPECT_TRUE(arguments.empty());
      }
    }
  }
  EXPECT_GT(with_days, 0);
}

TEST(Grammar, AnArgumentWhoseValuesAreNotOfItsTypeIsRefused) {
  const auto format = make_chat_format(tokenizer());
  const json::value parameters =
      json::parse(R"({"type":"object","properties":{"c":{"type":"integer","enum":["x"]}},"required":["c"]})");
  AnswerShape shape{.must_call = true};
  shape.tools = {{"f", &parameters}};
  Grammar grammar;
  grammar.new_rule();
  EXPECT_NE(complaint([&] {
              format->answer_grammar(grammar, shape);
            }).find("the tool \"f\", argument \"c\": the JSON schema at # has enum"),
            std::string::npos);
}

// What an argument of K3's may be: the tokens of `value`, declared of `type`.
bool takes_argument(const std::string& schema, const std::string& type, const std::string& value) {
  const auto format = make_chat_format(tokenizer());
  const json::value parameters = json::parse(R"({"type":"object","properties":{"a":)" + schema +
                                             R"(},"required":["a"],"$defs":{"n":{"type":"integer"}}})");
  AnswerShape shape{.thinking = false, .must_call = true};
  shape.tools = {{"f", &parameters}};
  Grammar grammar;
  grammar.new_rule();
  format->answer_grammar(grammar, shape);
  GrammarMachine machine(std::move(grammar), tree(), format->stop_ids());
  std::vector<Segment> segments;
  for (const std::string& part :
       {std::string("<|close|>"), std::string("response"), std::string("<|sep|>"), std::string("<|open|>"),
        std::string("tools"), std::string("<|sep|>"), std::string("<|open|>"),
        std::string("call tool=\"f\" index=\"1\""), std::string("<|sep|>"), std::string("<|open|>"),
        "argument key=\"a\" type=\"" + type + "\"", std::string("<|sep|>"), value, std::string("<|close|>"),
        std::string("argument"), std::string("<|sep|>")})
    segments.push_back({part, tokenizer().vocabulary().has_control(part)});
  const GrammarMachine::State* state = machine.start();
  for (int32_t id : tokenizer().encode(segments))
    if (!(state = machine.after(state, id))) return false;
  return true;
}

TEST(Grammar, ArgumentsOfCombinedSchemas) {
  const std::string optional = R"({"anyOf":[{"type":"integer"},{"type":"null"}],"default":null})";
  EXPECT_TRUE(takes_argument(optional, "number", "12"));
  EXPECT_TRUE(takes_argument(optional, "null", "null"));
  EXPECT_FALSE(takes_argument(optional, "string", "x"));
  EXPECT_TRUE(takes_argument(R"({"$ref":"#/$defs/n"})", "number", "3"));
  EXPECT_FALSE(takes_argument(R"({"$ref":"#/$defs/n"})", "string", "3"));
  const std::string text = R"({"type":"string","minLength":2,"maxLength":3})";
  EXPECT_TRUE(takes_argument(text, "string", "é東"));
  EXPECT_FALSE(takes_argument(text, "string", "é"));
  EXPECT_FALSE(takes_argument(text, "string", "abcd"));
  for (const char* refused : {R"({"type":"integer","minimum":1})", R"({"type":"string","not":{}})", "false",
                              R"({"$ref":"#/$defs/m"})", R"({"anyOf":[{"type":"string"}],"type":"string"})",
                              R"({"$ref":"#/properties/a"})"})
    EXPECT_NE(complaint([&] { takes_argument(refused, "string", "x"); }).find("argument \"a\""),
              std::string::npos)
        << refused;
}

TEST(Grammar, RelaxedSchemasSayWhatTheyDrop) {
  const std::tuple<const char*, const char*, std::vector<std::string>> cases[] = {
      {R"({"type":"integer"})", R"({"type":"integer"})", {}},
      {R"({"type":"integer","minimum":1,"title":"x"})", R"({"type":"integer","title":"x"})", {"p/minimum"}},
      {R"({"properties":{"a":{"items":{"multipleOf":2}},"b":{"uniqueItems":false}},"required":["a"]})",
       R"({"properties":{"a":{"items":{}},"b":{"uniqueItems":false}},"required":["a"]})",
       {"p/properties/a/items/multipleOf"}},
      {R"({"oneOf":[{"type":"string"},{"not":{}}],"type":"string"})",
       R"({"anyOf":[{"type":"string"},{}]})",
       {"p/oneOf", "p/type", "p/anyOf/1/not"}},
      {R"({"allOf":[{"type":"string"},{"minLength":1}]})", "{}", {"p/allOf"}},
      {R"({"allOf":[{"maximum":1}],"type":"integer"})", R"({"allOf":[{}]})", {"p/type", "p/allOf/0/maximum"}},
      {R"({"$ref":"#/$defs/x","type":"string","$defs":{"x":{"minimum":2}}})",
       R"({"$ref":"#/$defs/x","$defs":{"x":{}}})",
       {"p/type", "p/$defs/x/minimum"}},
      {R"({"enum":["a"],"type":"string","maxLength":3})",
       R"({"enum":["a"],"type":"string"})",
       {"p/maxLength"}},
      {R"({"pattern":"a+","minLength":3})", R"({"pattern":"a+"})", {"p/minLength"}},
      {R"({"pattern":"(?=a)b","minLength":3})", R"({"minLength":3})", {"p/pattern"}},
      {R"({"additionalProperties":false,"properties":{"a":"string","b":true}})",
       R"({"additionalProperties":false,"properties":{"a":true,"b":true}})",
       {"p/properties/a"}}};
  for (const auto& [schema, relaxed, places] : cases) {
    std::vector<std::string> dropped;
    const json::value got = relaxed_schema(json::parse(schema), "p", dropped);
    EXPECT_EQ(json::serialize(got), json::serialize(json::parse(relaxed))) << schema;
    EXPECT_EQ(dropped, places) << schema;
    EXPECT_EQ(complaint([&] {
                Grammar grammar;
                json_schema(grammar, got, got);
              }),
              "")
        << schema;
  }
}

TEST(Grammar, AnAnswerMayThinkAndThenMustBeJson) {
  const auto format = make_chat_format(tokenizer());
  Grammar grammar;
  grammar.new_rule();
  AnswerShape shape;
  shape.content = any_json(grammar, true);
  format->answer_grammar(grammar, shape);
  GrammarMachine machine(std::move(grammar), tree(), format->stop_ids());
  const auto takes = [&](const std::vector<std::string>& parts) {
    std::vector<Segment> segments;
    for (const std::string& part : parts)
      segments.push_back({part, tokenizer().vocabulary().has_control(part)});
    const GrammarMachine::State* state = machine.start();
    for (int32_t id : tokenizer().encode(segments))
      if (!(state = machine.after(state, id))) return false;
    return true;
  };
  const std::vector<std::string> head = {"Let me think: {", "<|close|>", "think",  "<|sep|>",
                                         "<|open|>",        "response",  "<|sep|>"};
  const auto with = [&](std::vector<std::string> rest) {
    std::vector<std::string> all = head;
    all.insert(all.end(), rest.begin(), rest.end());
    return all;
  };
  const std::vector<std::string> end = {"<|close|>", "response", "<|sep|>",       "<|close|>",
                                        "message",   "<|sep|>",  "<|end_of_msg|>"};
  const auto answer = [&](const std::string& content) {
    std::vector<std::string> rest = {content};
    rest.insert(rest.end(), end.begin(), end.end());
    return with(rest);
  };
  EXPECT_TRUE(takes(answer("{\"a\": 1}")));
  EXPECT_FALSE(takes(answer("[1]")));
  EXPECT_FALSE(takes(answer("{\"a\": 1")));
  EXPECT_FALSE(takes({"thinking", "<|end_of_msg|>"}));
  EXPECT_FALSE(takes(with({"{}", "<|end_of_msg|>"})));
}

// A recorded grammar is the same one: the same record, and the same tokens at every place of a text.
TEST(Grammar, ARecordGivesTheSameGrammar) {
  Grammar grammar;
  grammar.new_rule();
  AnswerShape shape;
  shape.content = any_json(grammar, true);
  const auto format = make_chat_format(tokenizer());
  format->answer_grammar(grammar, shape);
  const boost::json::object record = grammar_record(grammar);
  // As a log keeps it: text.
  const boost::json::value read = boost::json::parse(boost::json::serialize(record));
  Grammar again = grammar_from_record(read.get_object());
  EXPECT_EQ(boost::json::serialize(grammar_record(again)), boost::json::serialize(record));
  EXPECT_EQ(again.size(), grammar.size());
  GrammarMachine a(std::move(grammar), tree(), format->stop_ids()),
      b(std::move(again), tree(), format->stop_ids());
  const GrammarMachine::State *x = a.start(), *y = b.start();
  for (int32_t id : tokenizer().encode("thinking about {[")) {
    EXPECT_EQ(a.allowed(x), b.allowed(y));
    x = a.after(x, id);
    y = b.after(y, id);
    ASSERT_TRUE(x && y);
  }
}

TEST(Grammar, ADamagedRecordIsRefused) {
  const auto error_of = [](const std::string& text) -> std::string {
    try {
      grammar_from_record(boost::json::parse(text).as_object());
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kBadFile);
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of(R"({"rules":[[[0,0]]],"sets":[[97,122]]})"), "no error");
  EXPECT_NE(error_of(R"({"sets":[]})").find("no rules"), std::string::npos);
  EXPECT_NE(error_of(R"({"rules":[[[0,1]]],"sets":[[97,122]]})").find("not there"), std::string::npos);
  EXPECT_NE(error_of(R"({"rules":[[[1,1]]],"sets":[]})").find("not there"), std::string::npos);
  EXPECT_NE(error_of(R"({"rules":[[[7,0]]],"sets":[]})").find("unknown kind"), std::string::npos);
  EXPECT_NE(error_of(R"({"rules":[[[0]]],"sets":[]})").find("no value"), std::string::npos);
  EXPECT_NE(error_of(R"({"rules":[[[0,0]]],"sets":[[97,256]]})").find("[0, 255]"), std::string::npos);
  EXPECT_NE(error_of(R"({"rules":[[]],"sets":[[97,98],[97,98]]})").find("twice"), std::string::npos);
}

}  // namespace
}  // namespace perigee
