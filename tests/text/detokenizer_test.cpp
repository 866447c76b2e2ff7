// Streaming detokeniser: never splits a character, never loses a byte.
#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "vocabularies.h"

namespace perigee {
namespace {

using testing::control;
using testing::wordy_tokenizer;

TEST(Detokenizer, HoldsBackAnUnfinishedCharacter) {
  const Tokenizer tokenizer = testing::byte_tokenizer(ControlFamily::kK3);
  Detokenizer stream(tokenizer.vocabulary());
  std::vector<std::string> out;
  for (int32_t id : tokenizer.encode("é🙂x")) out.push_back(stream.push(id));
  EXPECT_EQ(out, (std::vector<std::string>{"", "é", "", "", "", "🙂", "x"}));
  EXPECT_EQ(stream.flush(), "");
  stream.push(tokenizer.encode("🙂")[0]);
  EXPECT_EQ(stream.flush(), "\uFFFD");
  EXPECT_EQ(stream.flush(), "");
}

TEST(Detokenizer, ControlTokensAreSkippedOrShown) {
  const Tokenizer tokenizer = wordy_tokenizer(ControlFamily::kK3);
  Detokenizer skip(tokenizer.vocabulary());
  Detokenizer show(tokenizer.vocabulary(), Detokenizer::Control::kShow);
  EXPECT_EQ(skip.push(control(tokenizer, "<|open|>")), "");
  EXPECT_EQ(show.push(control(tokenizer, "<|open|>")), "<|open|>");
}

TEST(Detokenizer, RandomIdsLoseNothing) {
  const Tokenizer tokenizer = wordy_tokenizer(ControlFamily::kK3);
  const std::vector<int32_t> favourites = tokenizer.encode("中🙂é你好\u0301");
  std::mt19937 random(11);
  for (int round = 0; round < 20000; ++round) {
    std::vector<int32_t> ids;
    for (size_t n = random() % 24; n > 0; --n) {
      // A third are bytes of characters, so that whole and cut characters are common.
      int32_t id = static_cast<int32_t>(random() % static_cast<unsigned>(tokenizer.vocabulary().size()));
      if (random() % 3 == 0) id = favourites[random() % favourites.size()];
      if (random() % 3 == 0) id = tokenizer.encode(random() % 2 ? "🙂" : "x")[0];
      ids.push_back(id);
    }
    const std::string whole = tokenizer.decode(ids);
    Detokenizer bytes(tokenizer.vocabulary(), Detokenizer::Control::kShow);
    Detokenizer text(tokenizer.vocabulary(), Detokenizer::Control::kShow);
    std::string all_bytes, all_text;
    for (int32_t id : ids) {
      all_bytes += bytes.push_bytes(id);
      all_text += text.push(id);
      ASSERT_TRUE(is_valid_utf8(all_text));
      ASSERT_EQ(whole.compare(0, all_bytes.size(), all_bytes), 0);
    }
    const size_t held = whole.size() - all_bytes.size();
    ASSERT_LE(held, 3u);
    all_bytes += bytes.flush_bytes();
    all_text += text.flush();
    ASSERT_EQ(all_bytes, whole);
    ASSERT_EQ(all_text, replace_invalid_utf8(whole));
  }
}

TEST(Utf8Stream, EveryCutOfEveryText) {
  const std::vector<std::string> texts = {"é中🙂a",       "\xE4\xB8\xE4\xB8\xAD", "\xF0\x9F\x99",
                                          "\x80\x80\xC3", "\xED\xA0\x80",         "\xF4\x90\x80\x80",
                                          "\xE0\x80\x80", "\xF0\x80\x80\x80",     "a\xC3\xC3\xA9"};
  for (const std::string& text : texts)
    for (unsigned cuts = 0; cuts < 1u << (text.size() - 1); ++cuts) {
      Utf8Stream stream;
      std::string bytes, shown, chunk;
      for (size_t i = 0; i < text.size(); ++i) {
        chunk += text[i];
        if (i + 1 < text.size() && !(cuts >> i & 1)) continue;
        const std::string out = stream.push(chunk);
        chunk.clear();
        bytes += out;
        shown += replace_invalid_utf8(out);
      }
      const std::string rest = stream.flush();
      ASSERT_EQ(bytes + rest, text);
      ASSERT_EQ(shown + replace_invalid_utf8(rest), replace_invalid_utf8(text));
    }
}

}  // namespace
}  // namespace perigee
