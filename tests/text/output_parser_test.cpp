// Output parsers: well-formed answers, every cut of them, random token salads, and what counts as a call.
#include "text/output_parser_k3.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>

#include "text/chat.h"
#include "text/json_text.h"
#include "text/output_parser_k2.h"
#include "vocabularies.h"

namespace perigee {
namespace {

namespace json = boost::json;
using testing::wordy_tokenizer;

// "{open}" and the like stand for control tokens.
std::vector<int32_t> tokens(const Tokenizer& tokenizer, std::string_view text) {
  static const std::map<std::string, std::string> kNames = {{"open", "<|open|>"},
                                                            {"close", "<|close|>"},
                                                            {"sep", "<|sep|>"},
                                                            {"eom", "<|end_of_msg|>"},
                                                            {"eos", "[EOS]"},
                                                            {"pad", "[PAD]"},
                                                            {"think", "<think>"},
                                                            {"/think", "</think>"},
                                                            {"section", "<|tool_calls_section_begin|>"},
                                                            {"/section", "<|tool_calls_section_end|>"},
                                                            {"call", "<|tool_call_begin|>"},
                                                            {"args", "<|tool_call_argument_begin|>"},
                                                            {"/call", "<|tool_call_end|>"},
                                                            {"end", "<|im_end|>"}};
  std::vector<int32_t> ids;
  std::string plain;
  const auto flush = [&] {
    for (int32_t id : tokenizer.encode(plain)) ids.push_back(id);
    plain.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const size_t stop = text[at] == '{' ? text.find('}', at) : std::string_view::npos;
    const auto name = stop == std::string_view::npos
                          ? kNames.end()
                          : kNames.find(std::string(text.substr(at + 1, stop - at - 1)));
    if (name == kNames.end()) {
      plain += text[at++];
      continue;
    }
    flush();
    ids.push_back(testing::control(tokenizer, name->second));
    at = stop + 1;
  }
  flush();
  return ids;
}

// Pushes all ids and checks on the way that the deltas join to the whole.
ParsedMessage run(OutputParser& parser, const std::vector<int32_t>& ids) {
  ParsedMessage joined;
  const auto add = [&](const Delta& delta) {
    EXPECT_TRUE(is_valid_utf8(delta.reasoning) && is_valid_utf8(delta.content));
    joined.reasoning += delta.reasoning;
    joined.content += delta.content;
    joined.tool_calls.insert(joined.tool_calls.end(), delta.tool_calls.begin(), delta.tool_calls.end());
  };
  for (int32_t id : ids) add(parser.push(id));
  add(parser.flush());
  EXPECT_TRUE(parser.flush().empty());
  EXPECT_EQ(parser.finish(), joined);
  for (const ToolCall& call : joined.tool_calls) {
    const auto arguments = parse_json(call.arguments);
    EXPECT_TRUE(arguments && arguments->is_object()) << call.arguments;
    EXPECT_FALSE(call.name.empty());
  }
  return joined;
}

const Tokenizer& k3() {
  static const Tokenizer tokenizer = wordy_tokenizer(ControlFamily::kK3);
  return tokenizer;
}

ParsedMessage parse(std::string_view text, bool thinking = true) {
  K3OutputParser parser(k3(), thinking);
  return run(parser, tokens(k3(), text));
}

constexpr std::string_view kCallOpen = "{open}call tool=\"get_weather\" index=\"1\"{sep}";

std::string argument(std::string key, std::string type, std::string value) {
  return "{open}argument key=\"" + key + "\" type=\"" + type + "\"{sep}" + value + "{close}argument{sep}";
}

// The arguments text of one call with these arguments.
std::string arguments(const std::string& inside) {
  const ParsedMessage m = parse(
      "{open}tools{sep}" + std::string(kCallOpen) + inside + "{close}call{sep}{close}tools{sep}", false);
  // In a non-thinking answer this all stands inside `response`, so open it properly.
  EXPECT_TRUE(m.tool_calls.empty());
  const ParsedMessage whole = parse("{close}response{sep}{open}tools{sep}" + std::string(kCallOpen) + inside +
                                        "{close}call{sep}{close}tools{sep}",
                                    false);
  return whole.tool_calls.empty() ? "no call" : whole.tool_calls[0].arguments;
}

TEST(K3Parser, AWholeAnswer) {
  const ParsedMessage m =
      parse("Let me 中🙂{close}think{sep}{open}response{sep}hello{close}response{sep}{open}tools{sep}" +
            std::string(kCallOpen) + argument("city", "string", "Paris") + argument("days", "number", "3") +
            "{close}call{sep}{open}call tool=\"f&quot;&amp;quot;\" index=\"2\"{sep}{close}call{sep}" +
            "{close}tools{sep}{close}message{sep}{eom}");
  EXPECT_EQ(m.reasoning, "Let me 中🙂");
  EXPECT_EQ(m.content, "hello");
  ASSERT_EQ(m.tool_calls.size(), 2u);
  EXPECT_EQ(m.tool_calls[0].name, "get_weather");
  EXPECT_EQ(m.tool_calls[0].arguments, R"({"city": "Paris", "days": 3})");
  EXPECT_EQ(m.tool_calls[1].name, "f\"&quot;");
  EXPECT_EQ(m.tool_calls[1].arguments, "{}");
  EXPECT_NE(m.tool_calls[0].id, m.tool_calls[1].id);
}

TEST(K3Parser, WithoutThinking) {
  const ParsedMessage m = parse("hi{close}response{sep}{close}message{sep}{eom}", false);
  EXPECT_EQ(m.reasoning, "");
  EXPECT_EQ(m.content, "hi");
}

TEST(K3Parser, ArgumentsByType) {
  EXPECT_EQ(arguments(argument("a", "string", " 3 \n\"x\"")), R"({"a": " 3 \n\"x\""})");
  EXPECT_EQ(arguments(argument("a", "string", "&quot;")), R"({"a": "&quot;"})");  // bodies are not escaped
  EXPECT_EQ(arguments(argument("a", "string", "")), R"({"a": ""})");
  EXPECT_EQ(arguments(argument("a", "number", "3")), R"({"a": 3})");
  EXPECT_EQ(arguments(argument("a", "number", "3.0")), R"({"a": 3})");
  EXPECT_EQ(arguments(argument("a", "number", "-0.0")), R"({"a": 0})");
  EXPECT_EQ(arguments(argument("a", "number", "1e3")), R"({"a": 1000})");
  EXPECT_EQ(arguments(argument("a", "number", "2.5")), R"({"a": 2.5})");
  EXPECT_EQ(arguments(argument("a", "number", "123456789012345678901234567890")),
            R"({"a": 123456789012345678901234567890})");
  EXPECT_EQ(arguments(argument("a", "number", "three")), R"({"a": "three"})");
  EXPECT_EQ(arguments(argument("a", "number", "NaN")), R"({"a": "NaN"})");
  EXPECT_EQ(arguments(argument("a", "boolean", "true")), R"({"a": true})");
  EXPECT_EQ(arguments(argument("a", "boolean", "True")), R"({"a": "True"})");
  EXPECT_EQ(arguments(argument("a", "null", "null")), R"({"a": null})");
  EXPECT_EQ(arguments(argument("a", "object", R"({"z": 1, "a": [2]})")), R"({"a": {"z": 1, "a": [2]}})");
  EXPECT_EQ(arguments(argument("a", "array", "[1, 2")), R"({"a": "[1, 2"})");
  EXPECT_EQ(arguments(argument("a", "array", "{}")), R"({"a": "{}"})");
  EXPECT_EQ(arguments(argument("a", "strange", "x")), R"({"a": "x"})");
  EXPECT_EQ(arguments("{open}argument key=\"a\"{sep}x{close}argument{sep}"), R"({"a": "x"})");
  EXPECT_EQ(arguments(argument("k &amp;quot; &quot;", "string", "v")), R"({"k &quot; \"": "v"})");
  EXPECT_EQ(arguments("{open}json type=\"object\"{sep} {\"a\": 1} {close}json{sep}"), R"({"a": 1})");
  EXPECT_EQ(arguments("{open}json type=\"object\"{sep}{}{close}json{sep}"), "{}");
  EXPECT_EQ(arguments("\n " + argument("a", "number", "1") + "\n"), R"({"a": 1})");
}

TEST(K3Parser, WhatIsNoCallStaysText) {
  EXPECT_EQ(arguments("{open}json type=\"object\"{sep}{\"a\": {close}json{sep}"), "no call");
  EXPECT_EQ(arguments("{open}json type=\"object\"{sep}[1]{close}json{sep}"), "no call");
  EXPECT_EQ(arguments(argument("a", "number", "1") + "{open}json type=\"object\"{sep}{}{close}json{sep}"),
            "no call");
  EXPECT_EQ(arguments("{open}json type=\"object\"{sep}{}{close}json{sep}" + argument("a", "number", "1")),
            "no call");
  EXPECT_EQ(arguments("words" + argument("a", "number", "1")), "no call");
  EXPECT_EQ(arguments(argument("a", "number", "1") + argument("a", "number", "2")), "no call");
  const auto content = [](const std::string& text) {
    return parse("{close}response{sep}{open}tools{sep}" + text, false);
  };
  ParsedMessage m = content("{open}call index=\"1\"{sep}{close}call{sep}");  // no name
  EXPECT_TRUE(m.tool_calls.empty());
  EXPECT_EQ(m.content, "<|open|>call index=\"1\"<|sep|><|close|>call<|sep|>");
  // A call inside an argument's text is that argument's text.
  m = content(
      "{open}call tool=\"f\"{sep}{open}argument key=\"a\" type=\"string\"{sep}{open}call "
      "tool=\"g\"{sep}{close}call{sep}{close}argument{sep}{close}call{sep}");
  ASSERT_EQ(m.tool_calls.size(), 1u);
  EXPECT_EQ(m.tool_calls[0].arguments, R"({"a": "<|open|>call tool=\"g\"<|sep|><|close|>call<|sep|>"})");
}

TEST(K3Parser, MalformedTagsStayText) {
  EXPECT_EQ(parse("a{sep}b", false).content, "ab");
  EXPECT_EQ(parse("a{open}nonsense{sep}b", false).content, "a<|open|>nonsense<|sep|>b");
  EXPECT_EQ(parse("a{close}think{sep}b", false).content, "a<|close|>think<|sep|>b");
  EXPECT_EQ(parse("a{open}b{open}c{close}{sep}", false).content, "abc<|close|><|sep|>");  // no half tags
  EXPECT_EQ(parse("a{close}response x=\"{sep}", false).content, "a<|close|>response x=\"<|sep|>");
  EXPECT_EQ(parse("a{close}{sep}", false).content, "a<|close|><|sep|>");
  EXPECT_EQ(parse("<|close|>response<|sep|>", false).content,
            "<|close|>response<|sep|>");  // the same, as ordinary text
  EXPECT_EQ(parse("a{pad}b", false).content, "ab");
  EXPECT_EQ(parse("a{eos}", false).content, "a");
  const ParsedMessage m = parse("r{open}response{sep}x{eom}");  // think was never closed
  EXPECT_EQ(m.reasoning, "r<|open|>response<|sep|>x");
  EXPECT_EQ(parse("{open}" + std::string(40000, 'x') + "{sep}y", false).content,
            std::string(40000, 'x') + "y");
}

// max_tokens, or the end of the message, inside of a tag or a call: nothing of it is shown.
TEST(K3Parser, WhatTheEndCutsIsNotShown) {
  for (const char* end : {"", "{eom}", "{eos}"}) {
    EXPECT_EQ(parse(std::string("a{open}") + end, false).content, "a");
    EXPECT_EQ(parse(std::string("a{close}respon") + end, false).content, "a");
    EXPECT_EQ(parse(std::string("why{close}thi") + end).reasoning, "why");
    const ParsedMessage m = parse("hi{close}response{sep}{open}tools{sep}" + std::string(kCallOpen) +
                                      argument("a", "string", "x") + "{open}argument key=\"b\"{sep}y" + end,
                                  false);
    EXPECT_EQ(m.content, "hi");
    EXPECT_TRUE(m.tool_calls.empty());
  }
}

TEST(K3Parser, EveryCutOfAnAnswer) {
  const std::string call = std::string(kCallOpen) + argument("a", "string", "中🙂") +
                           argument("b", "object", R"({"x": 1})") + "{close}call{sep}";
  const std::vector<int32_t> ids =
      tokens(k3(), "think中{close}think{sep}{open}response{sep}é🙂{close}response{sep}{open}tools{sep}" +
                       call + call + "{close}tools{sep}{close}message{sep}{eom}");
  const int32_t close = testing::control(k3(), "<|close|>"), sep = testing::control(k3(), "<|sep|>");
  const std::vector<int32_t> call_name = k3().encode("call");
  for (size_t cut = 0; cut <= ids.size(); ++cut) {
    K3OutputParser parser(k3(), true);
    const ParsedMessage m = run(parser, {ids.begin(), ids.begin() + static_cast<ptrdiff_t>(cut)});
    size_t closes = 0;
    for (size_t i = 0; i + 2 < cut; ++i)
      closes += ids[i] == close && ids[i + 1] == call_name[0] && ids[i + 2] == sep;
    ASSERT_EQ(m.tool_calls.size(), closes) << cut;
  }
}

// A marker of a tag in the text without the <|sep|> that ends the tag.
bool has_half_tag(std::string_view text) {
  while (true) {
    const size_t marker = std::min(text.find("<|open|>"), text.find("<|close|>"));
    const size_t sep = text.find("<|sep|>");
    if (marker == std::string_view::npos) return sep != std::string_view::npos;
    if (sep < marker) return true;
    text.remove_prefix(marker + 8);
    if (text.find("<|sep|>") > std::min(text.find("<|open|>"), text.find("<|close|>")) ||
        text.find("<|sep|>") == std::string_view::npos)
      return true;
    text.remove_prefix(text.find("<|sep|>") + 7);
  }
}

// What an answer shows has no half tags, and is the beginning of what it shows when it goes on. When it goes
// on to the ends of its elements, everything the tokens say is somewhere: dropping text would show as a
// shorter total.
TEST(K3Parser, RandomTokensNeverThrowAndLoseOnlyWhatTheEndCuts) {
  std::vector<std::string> bits = {"{open}",
                                   "{close}",
                                   "{sep}",
                                   "{open}",
                                   "{close}",
                                   "{sep}",
                                   "{eom}",
                                   "think",
                                   "response",
                                   "tools",
                                   "call",
                                   "message",
                                   "argument",
                                   "json",
                                   "call tool=\"f\"",
                                   "argument key=\"a\" type=\"string\"",
                                   "argument key=\"b\" type=\"number\"",
                                   "{open}tools{sep}",
                                   "{close}response{sep}",
                                   "{close}think{sep}",
                                   "{open}call tool=\"f\"{sep}",
                                   "{close}call{sep}",
                                   "{open}argument key=\"a\" type=\"object\"{sep}",
                                   "{close}argument{sep}",
                                   "{open}json type=\"object\"{sep}",
                                   "{}",
                                   "x",
                                   " ",
                                   "🙂"};
  size_t calls = 0, counted = 0;
  for (int round = 0; round < 20000; ++round) {
    // Half of the rounds start where calls may stand, with few changes, so that some calls come out whole.
    const bool tame = random() % 2;
    std::string text = tame ? "{close}think{sep}{open}tools{sep}{open}call tool=\"f\"{sep}" : "";
    for (size_t n = random() % (tame ? 4 : 30); n > 0; --n) text += bits[random() % bits.size()];
    if (tame) text += "{close}call{sep}";
    std::vector<int32_t> ids = tokens(k3(), text);
    for (int32_t& id : ids)
      if (random() % 40 == 0) id = static_cast<int32_t>(random() % 860) - 2;
    const bool thinking = tame || random() % 2;
    K3OutputParser cut_parser(k3(), thinking), parser(k3(), thinking);
    const ParsedMessage cut = run(cut_parser, ids);
    const std::vector<int32_t> ends =
        tokens(k3(), "{sep}{close}argument{sep}{close}json{sep}{close}call{sep}");
    ids.insert(ids.end(), ends.begin(), ends.end());
    const ParsedMessage m = run(parser, ids);
    calls += cut.tool_calls.size();
    ASSERT_FALSE(has_half_tag(m.reasoning) || has_half_tag(m.content)) << text << "\n" << m.content;
    ASSERT_FALSE(has_half_tag(cut.reasoning) || has_half_tag(cut.content)) << text << "\n" << cut.content;
    ASSERT_TRUE(m.reasoning.starts_with(cut.reasoning) && m.content.starts_with(cut.content)) << text;
    const auto ends_message = [](int32_t id) {
      return id == testing::control(k3(), "<|end_of_msg|>") || id == testing::control(k3(), "[EOS]");
    };
    if (!m.tool_calls.empty() || std::any_of(ids.begin(), ids.end(), ends_message)) continue;
    ++counted;
    const auto count_x = [](const std::string& s) { return std::count(s.begin(), s.end(), 'x'); };
    std::string all;
    for (int32_t id : ids)
      if (id >= 0 && id < k3().vocabulary().base_size()) all += k3().vocabulary().bytes(id);
    ASSERT_EQ(count_x(m.reasoning) + count_x(m.content), count_x(all)) << text;
  }
  EXPECT_GT(calls, 100u);
  EXPECT_GT(counted, 1000u);
}

// What render writes for an assistant turn, parse reads back.
TEST(K3Parser, RendersAndReadsBack) {
  const auto format = make_chat_format(k3());
  const json::array messages =
      json::parse(R"([{"role":"assistant","reasoning":"why","content":"text <|open|> & \"","tool_calls":[
      {"id":"1","function":{"name":"a \"&amp;\" b","arguments":{"s":"x\n\"","n":1.5,"i":7,"o":{"k":[null,true]},"z":null,"b":false,"empty":""}}}]}])")
          .as_array();
  std::vector<int32_t> ids = k3().encode(format->render(messages, {.add_generation_prompt = false}));
  const std::vector<int32_t> prompt = k3().encode(format->render({}, {}));
  ids.erase(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(prompt.size()));
  const auto parser = format->parser(true);
  const ParsedMessage m = run(*parser, ids);
  EXPECT_EQ(m.reasoning, "why");
  EXPECT_EQ(m.content, "text <|open|> & \"");
  ASSERT_EQ(m.tool_calls.size(), 1u);
  EXPECT_EQ(m.tool_calls[0].name, "a \"&amp;\" b");
  EXPECT_EQ(json::parse(m.tool_calls[0].arguments),
            messages[0].at("tool_calls").at(0).at("function").at("arguments"));
}

TEST(K3Parser, CallIdsDependOnSaltAndTokens) {
  const auto ids = tokens(k3(),
                          "{close}response{sep}{open}tools{sep}{open}call "
                          "tool=\"f\"{sep}{close}call{sep}{open}call tool=\"f\"{sep}{close}call{sep}");
  const auto call_id = [&](std::string_view salt, size_t i) {
    K3OutputParser parser(k3(), false, salt);
    return run(parser, ids).tool_calls.at(i).id;
  };
  EXPECT_EQ(call_id("a", 0), call_id("a", 0));
  EXPECT_NE(call_id("a", 0), call_id("b", 0));
  EXPECT_NE(call_id("a", 0), call_id("a", 1));
}

const Tokenizer& k2() {
  static const Tokenizer tokenizer = [] {
    const Tokenizer base = wordy_tokenizer(ControlFamily::kK2);
    std::vector<std::pair<int32_t, std::string>> names = {{622, "<think>"}, {623, "</think>"}};
    for (const ControlName& entry : control_names(ControlFamily::kK2))
      names.emplace_back(600 + entry.slot, entry.name);
    std::vector<std::string> pieces;
    for (int32_t id = 0; id < 600; ++id) pieces.emplace_back(base.vocabulary().bytes(id));
    return Tokenizer(Vocabulary(pieces, names));
  }();
  return tokenizer;
}

TEST(K2Parser, WholeAnswersAndCuts) {
  const std::string text =
      "why中{/think}hello🙂{section}{call}functions.f.g:0{args}{\"a\":1}{/call}{call}h{args}{}{/call}{/"
      "section}{end}";
  const std::vector<int32_t> ids = tokens(k2(), text);
  const int32_t call_end = testing::control(k2(), "<|tool_call_end|>");
  for (size_t cut = 0; cut <= ids.size(); ++cut) {
    K2OutputParser parser(k2(), true);
    const ParsedMessage m = run(parser, {ids.begin(), ids.begin() + static_cast<ptrdiff_t>(cut)});
    ASSERT_EQ(m.tool_calls.size(), static_cast<size_t>(std::count(
                                       ids.begin(), ids.begin() + static_cast<ptrdiff_t>(cut), call_end)));
    if (cut != ids.size()) continue;
    EXPECT_EQ(m.reasoning, "why中");
    EXPECT_EQ(m.content, "hello🙂");
    EXPECT_EQ(m.tool_calls[0].name, "f.g");
    EXPECT_EQ(m.tool_calls[0].arguments, "{\"a\":1}");
    EXPECT_EQ(m.tool_calls[1].name, "h");
  }
  K2OutputParser cut(k2(), false);
  EXPECT_EQ(run(cut, tokens(k2(), "a{section}{call}functions.f:0{args}{\"a\"{end}")).content, "a");
  K2OutputParser bad(k2(), false);
  EXPECT_EQ(run(bad, tokens(k2(), "{section}{call}f{args}[1]{/call}{/section}")).content,
            "<|tool_call_begin|>f<|tool_call_argument_begin|>[1]<|tool_call_end|>");
}

TEST(K2Parser, RandomTokensNeverThrow) {
  std::mt19937 random(5);
  const std::vector<std::string> bits = {"{think}", "{/think}", "{section}", "{/section}", "{call}", "{args}",
                                         "{/call}", "{end}",    "x",         "{}",         "f",      "🙂"};
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (size_t n = random() % 20; n > 0; --n) text += bits[random() % bits.size()];
    K2OutputParser parser(k2(), random() % 2);
    run(parser, tokens(k2(), text));
  }
}

}  // namespace
}  // namespace perigee
