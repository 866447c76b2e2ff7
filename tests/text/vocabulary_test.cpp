// Vocabulary: what load accepts, and the message for each fault.
#include "text/vocabulary.h"

#include <gtest/gtest.h>

#include <unistd.h>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "vocabularies.h"

namespace perigee {
namespace {

namespace fs = std::filesystem;

std::string base64(std::string_view bytes) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    for (size_t j = 0; j < 3; ++j) bits = bits << 8 | (j < n ? static_cast<uint8_t>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j) out += j <= n ? kAlphabet[bits >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

class VocabularyFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("perigee_vocabulary_" + std::to_string(::testing::UnitTest::GetInstance()->random_seed()) +
               ::testing::UnitTest::GetInstance()->current_test_info()->name() + std::to_string(getpid()));
    fs::create_directories(folder_);
    for (int byte = 0; byte < 256; ++byte)
      lines_.push_back(base64(std::string(1, static_cast<char>(byte))) + " " + std::to_string(byte));
    lines_.push_back(base64("he") + " 256");
    lines_.push_back(base64("hel") + " 257");
    lines_.push_back(base64("hell") + " 258");
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  void write_ranks() {
    std::string text;
    for (const std::string& line : lines_) text += line + "\n";
    write("tiktoken.model", text);
  }
  std::string error() {
    try {
      Vocabulary::load(folder_);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kBadFile);
      return e.what();
    }
    return "no error";
  }
  void expect_error(std::initializer_list<const char*> words) {
    const std::string message = error();
    for (const char* word : words)
      EXPECT_NE(message.find(word), std::string::npos) << message << "\nlacks: " << word;
  }

  fs::path folder_;
  std::vector<std::string> lines_;
};

TEST_F(VocabularyFiles, BuiltInTablesFollowTheModelType) {
  write_ranks();
  write("config.json", R"({"model_type": "kimi_k31"})");
  const Vocabulary k3 = Vocabulary::load(folder_);
  EXPECT_EQ(k3.base_size(), 259);
  EXPECT_EQ(k3.size(), 259 + 256);
  EXPECT_EQ(k3.control_id("<|open|>"), 259 + 3);
  EXPECT_EQ(k3.bytes(259 + 255), "[PAD]");
  EXPECT_EQ(k3.bytes(259 + 253), "<|reserved_token_512|>");
  EXPECT_EQ(k3.bytes(258), "hell");
  EXPECT_TRUE(k3.is_control(259));
  EXPECT_FALSE(k3.is_control(258));
  EXPECT_FALSE(k3.control_id("hell"));
  EXPECT_THROW(k3.bytes(259 + 256), Error);
  EXPECT_THROW(k3.bytes(-1), Error);

  write("config.json", R"({"model_type": "kimi_linear"})");
  EXPECT_EQ(Vocabulary::load(folder_).control_id("<|im_middle|>"), 259 + 17);
  write("tokenizer_config.json",
        R"({"tokenizer_class": "TikTokenTokenizer"})");  // silent about control tokens
  EXPECT_EQ(Vocabulary::load(folder_).control_id("<|im_middle|>"), 259 + 17);
}

TEST_F(VocabularyFiles, AddedTokensDecoderWins) {
  write_ranks();
  write("config.json", R"({"model_type": "kimi_k3"})");
  write("tokenizer_config.json", R"({"added_tokens_decoder": {"260": {"content": "<a>", "special": true}}})");
  const Vocabulary v = Vocabulary::load(folder_);
  EXPECT_EQ(v.control_id("<a>"), 260);
  EXPECT_FALSE(v.has_control("<|open|>"));
  EXPECT_EQ(v.bytes(259), "<|reserved_token_259|>");
}

TEST_F(VocabularyFiles, Faults) {
  expect_error({"tiktoken.model", "a model folder needs this file"});
  write_ranks();
  expect_error({"config.json", "missing", "added_tokens_decoder"});
  write("config.json", R"({"model_type": "llama"})");
  expect_error({"model_type \"llama\"", "kimi_k3"});
  write("config.json", "{");
  expect_error({"config.json"});
  write("config.json", R"({"model_type": "kimi_k3"})");
  EXPECT_EQ(error(), "no error");
  write("tokenizer_config.json", R"({"added_tokens_decoder": {"515": {"content": "<|im_end|>"}}})");
  expect_error({"\"515\"", "259..514"});
  write("tokenizer_config.json", R"({"added_tokens_decoder": {"260": {}}})");
  expect_error({"\"260\"", "content"});
  write("tokenizer_config.json",
        R"({"added_tokens_decoder": {"260": {"content": "x"}, "261": {"content": "x"}}})");
  expect_error({"control name x", "260", "261"});
  fs::remove(folder_ / "tokenizer_config.json");

  const std::vector<std::string> good = lines_;
  const auto with_last = [&](const std::string& line, std::initializer_list<const char*> words) {
    lines_ = good;
    lines_.back() = line;
    write_ranks();
    expect_error(words);
  };
  with_last("aGVsbA==258", {"tiktoken.model:259", "no space", "aGVsbA==258"});
  with_last("aGVsb===", {"tiktoken.model:259", "no space"});
  with_last("aGVsb*== 258", {"tiktoken.model:259", "not base64"});
  with_last("aGVsb 258", {"not base64"});
  with_last("aGVsbB== 258", {"not base64"});  // bits beyond the last byte
  with_last("= 258", {"not base64"});
  with_last(" 258", {"not base64"});
  with_last("aGVsbA== 25x", {"the rank is not a number"});
  with_last("aGVsbA== -1", {"the rank is not a number"});
  with_last("aGVsbA== 99999999999999999999999", {"the rank is not a number"});
  with_last("aGVsbA== 259", {"rank 259", "259 pieces"});
  with_last("aGVsbA== 7", {"rank 7", "twice"});
  with_last("aGU= 258", {"same piece", "line 257"});
  lines_ = good;
  lines_[65] = base64("A?") + " 65";
  write_ranks();
  expect_error({"single byte 0x41"});
}

TEST_F(VocabularyFiles, LinesInAnyOrderAndWindowsLineEnds) {
  std::reverse(lines_.begin(), lines_.end());
  for (std::string& line : lines_) line += "\r";
  write_ranks();
  write("config.json", R"({"model_type": "kimi_k3"})");
  EXPECT_EQ(Vocabulary::load(folder_).bytes(257), "hel");
}

TEST(ControlTables, RealIds) {
  const Vocabulary k3(std::vector<std::string>(163584), ControlFamily::kK3);
  const std::map<std::string, int32_t> expected = {{"[BOS]", 163584},
                                                   {"[EOS]", 163585},
                                                   {"<|end_of_msg|>", 163586},
                                                   {"<|open|>", 163587},
                                                   {"<|close|>", 163588},
                                                   {"<|sep|>", 163589},
                                                   {"[start_header_id]", 163590},
                                                   {"[end_header_id]", 163591},
                                                   {"[EOT]", 163593},
                                                   {"<|media_begin|>", 163602},
                                                   {"<|media_content|>", 163603},
                                                   {"<|media_end|>", 163604},
                                                   {"<|media_pad|>", 163605},
                                                   {"<osagent_mode>", 163649},
                                                   {"[UNK]", 163838},
                                                   {"[PAD]", 163839},
                                                   {"<|reserved_token_163837|>", 163837}};
  for (const auto& [name, id] : expected) EXPECT_EQ(k3.control_id(name), id) << name;
  const Vocabulary k2(std::vector<std::string>(163584), ControlFamily::kK2);
  const std::map<std::string, int32_t> expected_k2 = {
      {"<|im_end|>", 163586},       {"<|im_user|>", 163587},         {"<|im_assistant|>", 163588},
      {"<|im_system|>", 163594},    {"<|tool_call_begin|>", 163597}, {"<|im_middle|>", 163601},
      {"<|tool_call_end|>", 163599}};
  for (const auto& [name, id] : expected_k2) EXPECT_EQ(k2.control_id(name), id) << name;
  for (const Vocabulary* v : {&k2, &k3})
    for (int32_t id = v->base_size(); id < v->size(); ++id) EXPECT_EQ(v->control_id(v->bytes(id)), id);
}

}  // namespace
}  // namespace perigee
