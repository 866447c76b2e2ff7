#include "text/bpe.h"

#include <bit>
#include <cstring>
#include <queue>

#include "base/error.h"

namespace perigee {
namespace {

template <typename T>
T load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

uint64_t mix(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Two overlapping loads cover any key of up to 16 bytes, so the usual piece costs one multiplication and no
// loop.
uint64_t hash_bytes(const char* p, size_t n) {
  uint64_t a, b, seed = n * 0x9E3779B97F4A7C15u;
  if (n >= 8) {
    for (size_t i = 16; i < n; i += 8) seed = mix(seed ^ load<uint64_t>(p + i - 16), 0xD6E8FEB86659FD93u);
    a = load<uint64_t>(p + (n > 16 ? n - 16 : 0));
    b = load<uint64_t>(p + n - 8);
  } else if (n >= 4) {
    a = load<uint32_t>(p);
    b = load<uint32_t>(p + n - 4);
  } else {
    a = static_cast<uint8_t>(p[0]) | uint64_t{static_cast<uint8_t>(p[n / 2])} << 8;
    b = static_cast<uint8_t>(p[n - 1]);
  }
  return mix(a ^ 0x8EBC6AF09C88C6E3u ^ seed, b ^ 0x589965CC75374CC3u);
}

}  // namespace

Bpe::Bpe(const Vocabulary& vocabulary) {
  const size_t pieces = static_cast<size_t>(vocabulary.base_size());
  slots_.resize(std::bit_ceil(2 * pieces + 2));
  mask_ = slots_.size() - 1;
  lengths_.resize(pieces);
  for (size_t i = 0; i < pieces; ++i) {
    const int32_t id = static_cast<int32_t>(i);
    const std::string_view bytes = vocabulary.bytes(id);
    if (bytes.empty()) continue;
    if (bytes.size() > UINT16_MAX)
      fail(ErrorCode::kBadFile, "the piece of rank {} has {} bytes; at most {} are allowed", id, bytes.size(),
           UINT16_MAX);
    lengths_[i] = static_cast<uint16_t>(bytes.size());
    longest_ = std::max(longest_, bytes.size());
    const uint64_t hash = hash_bytes(bytes.data(), bytes.size());
    uint64_t at = hash & mask_;
    while (slots_[at].rank >= 0) at = (at + 1) & mask_;
    slots_[at] = {static_cast<uint32_t>(hash >> 32), id, bytes.data()};
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_rank_[byte] = rank({&c, 1});
    if (byte_rank_[byte] == kNone)
      fail(ErrorCode::kBadFile, "the vocabulary has no piece for the single byte 0x{:02X}; it needs all 256",
           byte);
  }
  byte_pair_rank_.resize(256 * 256);
  for (size_t pair = 0; pair < byte_pair_rank_.size(); ++pair) {
    const char bytes[2] = {static_cast<char>(pair >> 8), static_cast<char>(pair)};
    byte_pair_rank_[pair] = rank({bytes, 2});
  }
}

int32_t Bpe::rank(std::string_view bytes) const {
  if (bytes.size() > longest_ || bytes.empty()) return kNone;
  const uint64_t hash = hash_bytes(bytes.data(), bytes.size());
  const uint32_t tag = static_cast<uint32_t>(hash >> 32);
  for (uint64_t at = hash & mask_;; at = (at + 1) & mask_) {
    const Slot& slot = slots_[at];
    if (slot.rank < 0) return kNone;
    if (slot.tag == tag && lengths_[static_cast<size_t>(slot.rank)] == bytes.size() &&
        std::memcmp(slot.bytes, bytes.data(), bytes.size()) == 0)
      return slot.rank;
  }
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.size() == 1) {
    ids.push_back(byte_rank_[static_cast<uint8_t>(piece[0])]);
    return;
  }
  const int32_t whole = rank(piece);
  if (whole != kNone) {
    ids.push_back(whole);
  } else if (piece.size() <= kShort) {
    merge_short(piece, ids);
  } else {
    merge_long(piece, ids);
  }
}

void Bpe::merge_short(std::string_view piece, std::vector<int32_t>& ids) const {
  check(piece.size() <= kShort, "merge_short: piece longer than kShort");
  // Part i begins at start[i] and has the id part[i]; pair[i] is the rank that parts i and i+1 would merge
  // to.
  uint8_t start[kShort + 1];
  int32_t part[kShort], pair[kShort];
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) {
    start[i] = static_cast<uint8_t>(i);
    part[i] = byte_rank_[static_cast<uint8_t>(piece[i])];
    pair[i] = i + 1 < count ? byte_pair_rank(piece, i) : kNone;
  }
  start[count] = static_cast<uint8_t>(count);
  const auto pair_rank = [&](size_t i) {
    if (i + 1 >= count) return kNone;
    return rank(piece.substr(start[i], static_cast<size_t>(start[i + 2] - start[i])));
  };
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (pair[i] < pair[best]) best = i;
    if (pair[best] == kNone) break;
    part[best] = pair[best];
    const size_t behind = count - best - 2;  // parts after the merged pair
    std::memmove(part + best + 1, part + best + 2, behind * sizeof(part[0]));
    std::memmove(pair + best + 1, pair + best + 2, behind * sizeof(pair[0]));
    std::memmove(start + best + 1, start + best + 2, behind + 1);
    --count;
    pair[best] = pair_rank(best);
    if (best > 0) pair[best - 1] = pair_rank(best - 1);
  }
  ids.insert(ids.end(), part, part + count);
}

size_t Bpe::merge_long(std::string_view piece, std::vector<int32_t>& ids) const {
  check(piece.size() < UINT32_MAX, "merge_long: piece of 4 GiB or more");
  // A doubly linked list of parts, named by their first byte, and a heap of (rank, position). An entry whose
  // pair has changed since is skipped when it comes up.
  struct Part {
    uint32_t previous, next;  // kNowhere at the ends
    int32_t id, pair;  // pair: the rank with the next part; kNone when there is none, or this part is gone
  };
  constexpr uint32_t kNowhere = UINT32_MAX;
  const uint32_t length = static_cast<uint32_t>(piece.size());
  std::vector<Part> parts(length);
  std::vector<uint64_t> entries;
  entries.reserve(length);
  const auto entry = [](int32_t rank, uint32_t at) {
    return uint64_t{static_cast<uint32_t>(rank)} << 32 | at;
  };
  for (uint32_t i = 0; i < length; ++i) {
    const bool last = i + 1 == length;
    parts[i] = {i == 0 ? kNowhere : i - 1, last ? kNowhere : i + 1,
                byte_rank_[static_cast<uint8_t>(piece[i])], last ? kNone : byte_pair_rank(piece, i)};
    if (parts[i].pair != kNone) entries.push_back(entry(parts[i].pair, i));
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap(std::greater<>(),
                                                                            std::move(entries));
  size_t made = heap.size();
  const auto refresh = [&](uint32_t at) {
    Part& part = parts[at];
    part.pair = kNone;
    if (part.next == kNowhere) return;
    const uint32_t after = parts[part.next].next;
    part.pair = rank(piece.substr(at, (after == kNowhere ? length : after) - at));
    if (part.pair == kNone) return;
    heap.push(entry(part.pair, at));
    ++made;
  };
  while (!heap.empty()) {
    const uint32_t at = static_cast<uint32_t>(heap.top());
    const int32_t merged = static_cast<int32_t>(heap.top() >> 32);
    heap.pop();
    Part& part = parts[at];
    if (part.pair != merged) continue;
    Part& gone = parts[part.next];
    gone.pair = kNone;
    part.id = merged;
    part.next = gone.next;
    if (part.next != kNowhere) parts[part.next].previous = at;
    refresh(at);
    if (part.previous != kNowhere) refresh(part.previous);
  }
  for (uint32_t at = 0; at != kNowhere; at = parts[at].next) ids.push_back(parts[at].id);
  return made;
}

}  // namespace perigee
