#include "safetensors_mutator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace perigee {

namespace {

struct Entry {
  std::string name;
  const char* dtype;
  uint64_t element_bytes;
  std::vector<uint64_t> shape;
  uint64_t begin, end;
};

// The header's length as its eight bytes give it, cut to what is there.
size_t header_size(const std::string& bytes) {
  if (bytes.size() < 8) return 0;
  uint64_t length = 0;
  for (int i = 0; i < 8; ++i) length |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  return static_cast<size_t>(std::min<uint64_t>(length, bytes.size() - 8));
}

std::string file_of(const std::string& text, const std::string& data) {
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i) out[i] = static_cast<char>(uint64_t{text.size()} >> (8 * i));
  return out + text + data;
}

// Two or three dimensions whose product is `elements` modulo 2^bits and not `elements`. Every odd number has
// an inverse modulo a power of two.
std::vector<uint64_t> wrapping_shape(uint64_t elements, int bits, std::mt19937_64& random) {
  if (elements == 0 && random() % 4 == 0) return {uint64_t{1} << 62, uint64_t{1} << 62, 16};  // 2^128
  for (;;) {
    const uint64_t odd = 3 + 2 * (random() >> (1 + random() % 60));
    uint64_t inverse = odd;
    for (int i = 0; i < 6; ++i) inverse *= 2 - odd * inverse;  // Newton: each round doubles the bits
    const uint64_t other =
        elements == 0 ? uint64_t{1} << 62 : elements * inverse << (64 - bits) >> (64 - bits);
    const std::vector<uint64_t> shape =
        elements == 0 ? std::vector<uint64_t>{other, 4} : std::vector<uint64_t>{odd, other};
    __extension__ using Wide = unsigned __int128;
    const bool fits = shape[0] >> 63 == 0 && shape[1] >> 63 == 0;  // dimensions are signed in the file
    if (fits && Wide{shape[0]} * shape[1] >> bits != 0) return shape;
  }
}

}  // namespace

std::string header_text(const std::string& bytes) {
  return bytes.size() < 8 ? "" : bytes.substr(8, header_size(bytes));
}

std::string with_header_text(const std::string& bytes, const std::string& text) {
  return file_of(text, bytes.size() < 8 ? "" : bytes.substr(8 + header_size(bytes)));
}

std::string faulty_safetensors(Fault fault, std::mt19937_64& random) {
  static constexpr std::pair<const char*, uint64_t> kTypes[] = {
      {"U8", 1}, {"BF16", 2}, {"F32", 4}, {"I64", 8}};
  std::vector<Entry> entries;
  const size_t count = 2 + random() % 3;
  uint64_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto& [dtype, element_bytes] = kTypes[random() % std::size(kTypes)];
    Entry e{std::string(1, static_cast<char>('a' + i)), dtype, element_bytes, {}, at, at};
    uint64_t elements = 1;
    for (size_t rank = 1 + random() % 2; rank > 0; --rank) {
      e.shape.push_back(1 + random() % 4);
      elements *= e.shape.back();
    }
    if (e.element_bytes * elements < 4)
      e.shape.front() *= 4, elements *= 4;  // more than a fault's three bytes
    at = e.end = at + e.element_bytes * elements;
    entries.push_back(e);
  }
  const uint64_t step = 1 + random() % 3;
  const size_t which = 1 + random() % (count - 1);
  const auto move_from = [&](size_t first, uint64_t distance) {  // a distance below 0 wraps to what is meant
    for (size_t i = first; i < count; ++i) entries[i].begin += distance, entries[i].end += distance;
    at += distance;
  };
  Entry& chosen = entries[which];
  switch (fault) {
    case Fault::kNone:
      break;
    case Fault::kOverlap:
      move_from(which, -step);
      break;
    case Fault::kGap:
      move_from(which, step);
      break;
    case Fault::kTrailing:
      at += step;
      break;
    case Fault::kOverflow: {
      if (random() % 2) {  // an empty tensor, whose shape wraps to nothing
        const uint64_t gone = chosen.end - chosen.begin;
        chosen.end = chosen.begin;
        move_from(which + 1, -gone);
      }
      const uint64_t elements = (chosen.end - chosen.begin) / chosen.element_bytes;
      chosen.shape = wrapping_shape(elements, 64 - __builtin_ctzll(chosen.element_bytes), random);
      break;
    }
    case Fault::kShape:
      chosen.shape.assign(1, (chosen.end - chosen.begin) / chosen.element_bytes + 1);
      break;
    case Fault::kOutOfFile:
      at -= step;
      break;
    case Fault::kDuplicate:
      chosen.name = entries[which - 1].name;
  }
  std::shuffle(entries.begin(), entries.end(), random);  // the header's order is free
  std::string text;
  for (const Entry& e : entries)
    text += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        text.empty() ? "{" : ",", e.name, e.dtype, fmt::join(e.shape, ","), e.begin, e.end);
  return file_of(text + "}", std::string(at, 'x'));
}

std::string change_a_number(const std::string& bytes, std::mt19937_64& random) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  std::string text = header_text(bytes);
  std::vector<size_t> starts;
  for (size_t i = 0; i < text.size(); ++i)
    if (digit(text[i]) && (i == 0 || !digit(text[i - 1]))) starts.push_back(i);
  if (starts.empty()) return bytes;
  const size_t start = starts[random() % starts.size()];
  const size_t end =
      std::find_if_not(text.begin() + static_cast<ptrdiff_t>(start), text.end(), digit) - text.begin();
  uint64_t value = 0;
  for (size_t i = start; i < end; ++i) value = 10 * value + static_cast<uint64_t>(text[i] - '0');
  static constexpr uint64_t kEdges[] = {uint64_t{1} << 31,
                                        uint64_t{1} << 32,
                                        uint64_t{1} << 61,
                                        uint64_t{1} << 62,
                                        uint64_t{1} << 63,
                                        ~uint64_t{0},
                                        0};
  switch (random() % 4) {
    case 0:
      value += 1 + random() % 3;
      break;
    case 1:
      value -= 1 + random() % 3;
      break;
    case 2:
      value *= 2;
      break;
    default:
      value = kEdges[random() % std::size(kEdges)] - random() % 2;
  }
  return with_header_text(bytes, text.replace(start, end - start, fmt::format("{}", value)));
}

}  // namespace perigee
