// The vocabulary: base pieces by rank (from `tiktoken.model`) and the 256 named control slots after them
// (from `tokenizer_config.json`, or the family's built-in table). Only lookups live here; merging is in
// bpe.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/control_tokens.h"

namespace perigee {

class Vocabulary {
 public:
  // Reads FOLDER/tiktoken.model (`base64 SP rank` lines, ranks 0..n-1 each exactly once) and the control
  // names: those of tokenizer_config.json's added_tokens_decoder, else the table of the family that
  // config.json's model_type names. Every slot without a name is called <|reserved_token_ID|>. Throws
  // Error{kBadFile} naming file, line and remedy.
  static Vocabulary load(const std::filesystem::path& folder);

  // `pieces[rank]` holds the bytes of a base piece; an empty string leaves the rank unused. `names` gives
  // control ids.
  Vocabulary(const std::vector<std::string>& pieces,
             const std::vector<std::pair<int32_t, std::string>>& names);
  Vocabulary(const std::vector<std::string>& pieces, ControlFamily family);

  int32_t base_size() const { return base_size_; }
  int32_t size() const { return base_size_ + kControlSlots; }
  bool is_control(int32_t id) const { return id >= base_size_ && id < size(); }

  // Bytes of a base piece, or the name of a control token. Throws Error{kBadRequest} when no such id exists.
  std::string_view bytes(int32_t id) const;

  std::optional<int32_t> control_id(std::string_view name) const;
  bool has_control(std::string_view name) const { return control_id(name).has_value(); }

 private:
  int32_t base_size_ = 0;
  std::string arena_;              // every piece and name, one after the other
  std::vector<uint32_t> offsets_;  // [size() + 1] into arena_
  std::unordered_map<std::string, int32_t> control_ids_;
};

}  // namespace perigee
