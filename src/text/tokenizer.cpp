#include "text/tokenizer.h"

#include "base/error.h"
#include "text/bpe.h"
#include "text/long_input_guard.h"
#include "text/pretokenizer.h"
#include "text/utf8.h"

namespace perigee {

struct Tokenizer::Parts {
  explicit Parts(Vocabulary v) : vocabulary(std::move(v)), bpe(vocabulary) {}

  Vocabulary vocabulary;
  Bpe bpe;  // views `vocabulary`
  Pretokenizer pretokenizer;
};

Tokenizer Tokenizer::load(const std::filesystem::path& folder) { return Tokenizer(Vocabulary::load(folder)); }

Tokenizer::Tokenizer(Vocabulary vocabulary) : parts_(std::make_shared<Parts>(std::move(vocabulary))) {}

const Vocabulary& Tokenizer::vocabulary() const { return parts_->vocabulary; }

void Tokenizer::append(std::string_view text, std::vector<int32_t>& ids) const {
  if (!is_valid_utf8(text)) return append(replace_invalid_utf8(text), ids);
  guard_long_input(text, [&](std::string_view part) {
    parts_->pretokenizer.split(part, [&](std::string_view piece) { parts_->bpe.encode(piece, ids); });
  });
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 1);
  append(text, ids);
  return ids;
}

std::vector<int32_t> Tokenizer::encode(std::span<const Segment> segments) const {
  std::vector<int32_t> ids;
  for (const Segment& segment : segments) {
    if (!segment.control) {
      append(segment.text, ids);
      continue;
    }
    const std::optional<int32_t> id = vocabulary().control_id(segment.text);
    if (!id)
      fail(ErrorCode::kBadFile,
           "the vocabulary has no control token {}; the chat format needs another tokenizer", segment.text);
    ids.push_back(*id);
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string out;
  for (int32_t id : ids) out += vocabulary().bytes(id);
  return out;
}

}  // namespace perigee
