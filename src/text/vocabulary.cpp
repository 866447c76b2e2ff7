#include "text/vocabulary.h"

#include <array>
#include <boost/json.hpp>
#include <charconv>

#include "base/read_file.h"

namespace perigee {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;
using Names = std::vector<std::pair<int32_t, std::string>>;

std::array<int8_t, 256> base64_values() {
  std::array<int8_t, 256> values;
  values.fill(-1);
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < kAlphabet.size(); ++i)
    values[static_cast<uint8_t>(kAlphabet[i])] = static_cast<int8_t>(i);
  return values;
}

// Canonical padded base64; nullopt for anything else.
std::optional<std::string> decode_base64(std::string_view text) {
  static const std::array<int8_t, 256> kValues = base64_values();
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (char c : text.substr(0, text.size() - padding)) {
    const int8_t value = kValues[static_cast<uint8_t>(c)];
    if (value < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      out.push_back(static_cast<char>(bits >> count));
      bits &= (1u << count) - 1;
    }
  }
  if (bits != 0) return std::nullopt;
  return out;
}

std::vector<std::string> read_pieces(const fs::path& path) {
  if (!fs::exists(path))
    fail(ErrorCode::kBadFile, "{}: missing; a model folder needs this file", path.string());
  const std::string file = read_file(path.string());
  std::vector<std::pair<size_t, std::string>> by_line;  // rank, bytes
  std::string_view rest = file;
  for (size_t line = 1; !rest.empty(); ++line) {
    const size_t end = rest.find('\n');
    std::string_view text = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.empty() && rest.empty()) break;
    const auto bad = [&](std::string_view what) {
      fail(ErrorCode::kBadFile, "{}:{}: {} in \"{}\"; expected a line `base64 rank`: fetch the file again",
           path.string(), line, what, text.substr(0, 80));
    };
    const size_t space = text.find(' ');
    if (space == std::string_view::npos) bad("no space");
    std::optional<std::string> bytes = decode_base64(text.substr(0, space));
    if (!bytes || bytes->empty()) bad("the piece is not base64");
    const std::string_view number = text.substr(space + 1);
    size_t rank = 0;
    const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
    if (error != std::errc() || stop != number.data() + number.size()) bad("the rank is not a number");
    by_line.emplace_back(rank, std::move(*bytes));
  }

  std::vector<std::string> pieces(by_line.size());
  std::unordered_map<std::string_view, size_t> line_of;
  for (size_t i = 0; i < by_line.size(); ++i) {
    const auto& [rank, bytes] = by_line[i];
    if (rank >= pieces.size())
      fail(ErrorCode::kBadFile, "{}:{}: rank {} in a file of {} pieces; ranks run from 0 without a gap",
           path.string(), i + 1, rank, pieces.size());
    if (!pieces[rank].empty())
      fail(ErrorCode::kBadFile, "{}:{}: rank {} stands in the file twice; each rank has one line",
           path.string(), i + 1, rank);
    const auto [seen, fresh] = line_of.emplace(bytes, i + 1);
    if (!fresh)
      fail(ErrorCode::kBadFile, "{}:{}: the same piece stands on line {}; each piece has one rank",
           path.string(), i + 1, seen->second);
    pieces[rank] = bytes;
  }
  for (int byte = 0; byte < 256; ++byte)
    if (!line_of.contains(std::string(1, static_cast<char>(byte))))
      fail(ErrorCode::kBadFile,
           "{}: no piece is the single byte 0x{:02X}; a byte-level vocabulary holds all 256", path.string(),
           byte);
  return pieces;
}

json::object read_object(const fs::path& path) {
  json::error_code error;
  json::value value = json::parse(read_file(path.string()), error);
  if (error || !value.is_object())
    fail(ErrorCode::kBadFile, "{}: {}; fetch the file again", path.string(),
         error ? "not valid JSON: " + error.message() : "not a JSON object");
  return std::move(value.as_object());
}

Names names_of_family(ControlFamily family, int32_t base_size) {
  Names names;
  for (const ControlName& entry : control_names(family))
    names.emplace_back(base_size + entry.slot, entry.name);
  return names;
}

Names names_of_config(const fs::path& path, const json::object& entries, int32_t base_size) {
  Names names;
  for (const auto& entry : entries) {
    const std::string_view key(entry.key().data(), entry.key().size());
    int32_t id = 0;
    const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || stop != key.data() + key.size() || id < base_size ||
        id >= base_size + kControlSlots)
      fail(ErrorCode::kBadFile,
           "{}: added_tokens_decoder has the id \"{}\", outside the control slots {}..{} that follow the {} "
           "base ranks; "
           "take both files from one checkpoint",
           path.string(), key, base_size, base_size + kControlSlots - 1, base_size);
    const json::object* token = entry.value().if_object();
    const json::value* content = token ? token->if_contains("content") : nullptr;
    if (!content || !content->is_string() || content->as_string().empty())
      fail(ErrorCode::kBadFile, "{}: added_tokens_decoder[\"{}\"] has no string \"content\"", path.string(),
           key);
    names.emplace_back(id, std::string(content->as_string()));
  }
  return names;
}

ControlFamily family_of_model(const fs::path& config) {
  const std::string remedy = "add added_tokens_decoder to tokenizer_config.json";
  if (!fs::exists(config))
    fail(ErrorCode::kBadFile, "{}: missing, and no file names the control tokens; {}", config.string(),
         remedy);
  const json::object object = read_object(config);
  const json::value* type = object.if_contains("model_type");
  const std::string name = type && type->is_string() ? std::string(type->as_string()) : "";
  if (name == "kimi_k3" || name == "kimi_k31") return ControlFamily::kK3;
  if (name == "kimi_linear" || name == "kimi_k2" || name == "kimi_k25") return ControlFamily::kK2;
  fail(ErrorCode::kBadFile,
       "{}: model_type \"{}\" has no built-in control tokens (kimi_k3, kimi_k31, kimi_linear, kimi_k2, "
       "kimi_k25 do); {}",
       config.string(), name, remedy);
}

}  // namespace

Vocabulary Vocabulary::load(const fs::path& folder) {
  const std::vector<std::string> pieces = read_pieces(folder / "tiktoken.model");
  const int32_t base_size = static_cast<int32_t>(pieces.size());
  const fs::path config = folder / "tokenizer_config.json";
  if (fs::exists(config)) {
    const json::object object = read_object(config);
    const json::value* entries = object.if_contains("added_tokens_decoder");
    if (entries && !entries->is_object())
      fail(ErrorCode::kBadFile, "{}: added_tokens_decoder is not an object", config.string());
    if (entries && !entries->as_object().empty())
      return Vocabulary(pieces, names_of_config(config, entries->as_object(), base_size));
  }
  return Vocabulary(pieces, family_of_model(folder / "config.json"));
}

Vocabulary::Vocabulary(const std::vector<std::string>& pieces, ControlFamily family)
    : Vocabulary(pieces, names_of_family(family, static_cast<int32_t>(pieces.size()))) {}

Vocabulary::Vocabulary(const std::vector<std::string>& pieces, const Names& names)
    : base_size_(static_cast<int32_t>(pieces.size())) {
  std::vector<std::string> slots(kControlSlots);
  for (const auto& [id, name] : names) {
    if (!is_control(id))
      fail(ErrorCode::kBadFile, "control token {} has the id {}, outside {}..{}", name, id, base_size_,
           size() - 1);
    std::string& slot = slots[static_cast<size_t>(id - base_size_)];
    if (!slot.empty())
      fail(ErrorCode::kBadFile, "control id {} has two names, {} and {}; keep one", id, slot, name);
    slot = name;
  }
  for (const std::string& piece : pieces) {
    offsets_.push_back(static_cast<uint32_t>(arena_.size()));
    arena_ += piece;
  }
  for (int32_t slot = 0; slot < kControlSlots; ++slot) {
    const int32_t id = base_size_ + slot;
    std::string& name = slots[static_cast<size_t>(slot)];
    if (name.empty()) name = fmt::format("<|reserved_token_{}|>", id);
    if (!control_ids_.emplace(name, id).second)
      fail(ErrorCode::kBadFile, "control name {} belongs to the ids {} and {}; names are unique", name,
           control_ids_[name], id);
    offsets_.push_back(static_cast<uint32_t>(arena_.size()));
    arena_ += name;
  }
  offsets_.push_back(static_cast<uint32_t>(arena_.size()));
}

std::string_view Vocabulary::bytes(int32_t id) const {
  if (id < 0 || id >= size())
    fail(ErrorCode::kBadRequest, "token id {} is outside the vocabulary of {} (0..{})", id, size(),
         size() - 1);
  const size_t at = static_cast<size_t>(id);
  return std::string_view(arena_).substr(offsets_[at], offsets_[at + 1] - offsets_[at]);
}

std::optional<int32_t> Vocabulary::control_id(std::string_view name) const {
  const auto found = control_ids_.find(std::string(name));
  if (found == control_ids_.end()) return std::nullopt;
  return found->second;
}

}  // namespace perigee
