// Byte-pair merging by rank, giving exactly tiktoken's ids for one piece: of all adjacent pairs that are in
// the vocabulary, the one of lowest rank merges first, the leftmost of equals. Most pieces are a single
// lookup; short ones merge in a small array, long ones with a heap, so that a piece of n bytes costs O(n log
// n).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace perigee {

class Bpe {
 public:
  // Keeps views into `vocabulary`, which must outlive this object and stay where it is.
  explicit Bpe(const Vocabulary& vocabulary);

  // Appends the ids of `piece`, one or more bytes.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

  // The two merge loops behind encode, of equal results; public for the tests. merge_short takes at most
  // kShort bytes. merge_long returns how many heap entries it made, its measure of work: at most three a
  // byte.
  void merge_short(std::string_view piece, std::vector<int32_t>& ids) const;
  size_t merge_long(std::string_view piece, std::vector<int32_t>& ids) const;
  static constexpr size_t kShort = 96;  // bytes; above, the heap is faster

  // Rank of these exact bytes, or kNone.
  static constexpr int32_t kNone = INT32_MAX;
  int32_t rank(std::string_view bytes) const;

 private:
  int32_t byte_pair_rank(std::string_view piece, size_t at) const {
    return byte_pair_rank_[size_t{static_cast<uint8_t>(piece[at])} << 8 |
                           static_cast<uint8_t>(piece[at + 1])];
  }

  struct Slot {  // of an open-addressing table, at most half full
    uint32_t tag = 0;
    int32_t rank = -1;
    const char* bytes = nullptr;
  };

  std::vector<Slot> slots_;
  std::vector<uint16_t> lengths_;  // [base_size] bytes of each piece
  uint64_t mask_ = 0;
  size_t longest_ = 0;
  std::array<int32_t, 256> byte_rank_{};
  std::vector<int32_t>
      byte_pair_rank_;  // [first * 256 + second]: every merge starts from these, so no hashing there
};

}  // namespace perigee
