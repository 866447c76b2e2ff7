#include "serve/answer_text.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "text/chat.h"
#include "text/utf8.h"

namespace perigee::serve {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load("models/tiny-k31");
  return loaded;
}
const ChatFormat& format() {
  static const auto made = make_chat_format(tokenizer());
  return *made;
}

std::vector<GeneratedToken> tokens_of(const std::vector<int32_t>& ids) {
  std::vector<GeneratedToken> out;
  for (int32_t id : ids) out.push_back({.id = id, .logprob = -1});
  return out;
}

// An answer in segments: "<|…|>" names a control token, everything else is text.
std::vector<int32_t> ids_of(const std::vector<std::string>& parts) {
  std::vector<Segment> segments;
  for (const std::string& part : parts)
    segments.push_back({part, tokenizer().vocabulary().has_control(part)});
  return tokenizer().encode(segments);
}

AnswerDelta whole(const std::vector<int32_t>& ids, const AnswerOptions& options, bool chat,
                  const std::vector<size_t>& cuts = {}, FinishReason finish = FinishReason::kStop) {
  AnswerText text(tokenizer(), chat ? format().parser(true) : nullptr, options);
  const std::vector<GeneratedToken> all = tokens_of(ids);
  AnswerDelta sum;
  size_t at = 0;
  for (size_t cut : cuts) {
    const size_t end = std::min(all.size(), at + cut);
    if (end == all.size()) break;
    sum.append(text.push(std::span(all).subspan(at, end - at), FinishReason::kNone));
    at = end;
  }
  sum.append(text.push(std::span(all).subspan(at), finish));
  EXPECT_TRUE(text.ended());
  EXPECT_EQ(text.tokens(), static_cast<int64_t>(sum.tokens.size()));
  return sum;
}

bool same(const AnswerDelta& a, const AnswerDelta& b) {
  return a.reasoning == b.reasoning && a.content == b.content && a.calls == b.calls && a.finish == b.finish &&
         a.stop_string == b.stop_string && a.tokens.size() == b.tokens.size();
}

const std::vector<std::string> kCall = {
    "Let me look.", "<|close|>",     "think",       "<|sep|>",   "<|open|>",
    "response",     "<|sep|>",       "One moment.", "<|close|>", "response",
    "<|sep|>",      "<|open|>",      "tools",       "<|sep|>",   "<|open|>",
    "call",         " tool",         "=\"",         "weather",   "\"",
    " index",       "=\"",           "1",           "\"",        "<|sep|>",
    "<|open|>",     "argument",      " key",        "=\"",       "city",
    "\"",           " type",         "=\"",         "string",    "\"",
    "<|sep|>",      "Krak\xC3\xB3w", "<|close|>",   "argument",  "<|sep|>",
    "<|close|>",    "call",          "<|sep|>",     "<|close|>", "tools",
    "<|sep|>",      "<|close|>",     "message",     "<|sep|>",   "<|end_of_msg|>"};

TEST(AnswerText, AChatAnswerWithACall) {
  const AnswerDelta a = whole(ids_of(kCall), {}, true);
  EXPECT_EQ(a.reasoning, "Let me look.");
  EXPECT_EQ(a.content, "One moment.");
  ASSERT_EQ(a.calls.size(), 1u);
  EXPECT_EQ(a.calls[0].name, "weather");
  EXPECT_EQ(a.calls[0].arguments, "{\"city\": \"Krak\xC3\xB3w\"}");
  EXPECT_EQ(a.finish, "tool_calls");
}

TEST(AnswerText, AnAnswerCutAtItsLengthIsNotACall) {
  std::vector<int32_t> ids = ids_of(kCall);
  ids.resize(ids.size() - 14);
  EXPECT_EQ(whole(ids, {}, true, {}, FinishReason::kLength).finish, "length");
}

TEST(AnswerText, OneCallEndsTheAnswer) {
  std::vector<std::string> two = kCall;
  const std::vector<std::string> call(kCall.begin() + 14, kCall.begin() + 43);
  two.insert(two.begin() + 43, call.begin(), call.end());
  EXPECT_EQ(whole(ids_of(two), {}, true).calls.size(), 2u);
  AnswerOptions one;
  one.one_call = true;
  const AnswerDelta a = whole(ids_of(two), one, true);
  EXPECT_EQ(a.calls.size(), 1u);
  EXPECT_EQ(a.finish, "tool_calls");
}

TEST(AnswerText, StopStringsEndTheContentAndLeaveTheThinkingAlone) {
  AnswerOptions stop;
  stop.stops = {"Let", "mom"};
  const AnswerDelta a = whole(ids_of(kCall), stop, true);
  EXPECT_EQ(a.reasoning, "Let me look.");
  EXPECT_EQ(a.content, "One ");
  EXPECT_EQ(a.finish, "stop");
  EXPECT_EQ(a.stop_string, "mom");
  stop.include_stop = true;
  EXPECT_EQ(whole(ids_of(kCall), stop, true).content, "One mom");
}

TEST(AnswerText, AStopTokenIsReportedWhenItIsTheRequestsOwn) {
  const std::vector<int32_t> ids = ids_of({"abc", "<|end_of_msg|>"});
  AnswerOptions options;
  EXPECT_EQ(whole(ids, options, false).content, "abc");
  EXPECT_FALSE(whole(ids, options, false).stop_id.has_value());
  options.stop_ids = {ids.back()};
  EXPECT_EQ(whole(ids, options, false).stop_id, ids.back());
  options.include_stop = options.show_control = true;
  EXPECT_EQ(whole(ids, options, false).content, "abc<|end_of_msg|>");
}

TEST(AnswerText, MinTokensHoldStopsBack) {
  const std::vector<int32_t> ids = ids_of({"a", "b", "a", "b"});
  AnswerOptions options;
  options.stops = {"b"};
  EXPECT_EQ(whole(ids, options, false, {}, FinishReason::kLength).content, "a");
  options.min_tokens = 4;
  EXPECT_EQ(whole(ids, options, false, {}, FinishReason::kLength).content, "aba");
}

// Text, control tokens and halves of characters in any order, as a confused model may write.
rc::Gen<std::vector<int32_t>> any_answer() {
  const int32_t base = tokenizer().vocabulary().base_size();
  const std::vector<int32_t> marks =
      ids_of({"<|open|>", "<|close|>", "<|sep|>", "think", "response", "tools", "call", "argument", " tool",
              "=\"", "\"", " key", " type", "string", "number", "json", "message"});
  return rc::gen::container<std::vector<int32_t>>(
      rc::gen::weightedOneOf<int32_t>({{6, rc::gen::elementOf(marks)},
                                       {4, rc::gen::inRange<int32_t>(0, base)},
                                       {1, rc::gen::inRange<int32_t>(base, base + 256)}}));
}

// A well-formed answer with some tokens exchanged, so that the deeper states are reached.
rc::Gen<std::vector<int32_t>> damaged_answer() {
  return rc::gen::map(
      rc::gen::pair(rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, 1000)), any_answer()),
      [](const std::pair<std::vector<size_t>, std::vector<int32_t>>& damage) {
        std::vector<int32_t> ids = ids_of(kCall);
        for (size_t i = 0; i < std::min<size_t>({damage.first.size(), damage.second.size(), 4}); ++i)
          ids[damage.first[i] % ids.size()] = damage.second[i];
        return ids;
      });
}

RC_GTEST_PROP(AnswerTextProperty, StreamedEqualsWholeWhateverTheCuts, ()) {
  const std::vector<int32_t> ids = *rc::gen::oneOf(any_answer(), damaged_answer());
  RC_PRE(!ids.empty());
  const std::vector<size_t> cuts =
      *rc::gen::container<std::vector<size_t>>(ids.size(), rc::gen::inRange<size_t>(1, 9));
  AnswerOptions options;
  options.stops =
      *rc::gen::elementOf(std::vector<std::vector<std::string>>{{}, {"\""}, {"tool", "ol="}, {"\n\n", "e"}});
  options.include_stop = *rc::gen::arbitrary<bool>();
  options.one_call = *rc::gen::arbitrary<bool>();
  const bool chat = *rc::gen::arbitrary<bool>();
  const AnswerDelta one = whole(ids, options, chat), pieces = whole(ids, options, chat, cuts);
  RC_ASSERT(same(one, pieces));
  RC_ASSERT(is_valid_utf8(one.content) && is_valid_utf8(one.reasoning));
  RC_ASSERT(one.finish == "stop" || one.finish == "tool_calls");
}

// No delta may show a marker: not in a stream either, where a part cannot be taken back.
RC_GTEST_PROP(AnswerTextProperty, DeltasOfAWellFormedAnswerShowNoMarkup, ()) {
  AnswerText text(tokenizer(), format().parser(true), {});
  const auto ids = ids_of(kCall);
  const size_t cut = *rc::gen::inRange<size_t>(0, ids.size());
  const auto all = tokens_of(ids);
  for (const AnswerDelta& d : {text.push(std::span(all).first(cut), FinishReason::kNone),
                               text.push(std::span(all).subspan(cut), FinishReason::kStop)})
    for (const std::string& shown : {d.reasoning, d.content})
      RC_ASSERT(shown.find("<|") == std::string::npos);
}

}  // namespace
}  // namespace perigee::serve
