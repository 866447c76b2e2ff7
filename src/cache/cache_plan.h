// CachePlan: how one row of the pool is laid out, byte by byte. A row holds one block of tokens of every
// attention layer, or one group of KDA layer states; the plan chooses the block size with the least expected
// waste, and every address in a row is computed here, in 64 bits, and nowhere else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/cache_view.h"

namespace perigee {

// What some layers keep for every token. A page of kPageTokens tokens holds all values of a layer's entries,
// then all their scales.
struct PageKind {
  std::string name;  // "latent", "index key", "draft latent", …
  int layers = 0;
  int64_t entry_bytes = 0;   // values and scales of one entry
  int tokens_per_entry = 1;  // a compressed cache keeps one entry per this many tokens: a power of two
};

// What some layers keep once per sequence, as of one position: a KDA state with its conv inputs, or the
// window of a sliding-window layer.
struct StateKind {
  std::string name;  // "KDA state", "window", …
  int layers = 0;
  int heads = 1;             // of this rank
  int64_t record_bytes = 0;  // one head of one layer
};

// Everything one rank keeps of a sequence.
struct CacheKinds {
  std::vector<PageKind> pages;
  std::vector<StateKind> states;
  int64_t slot_bytes = 0;  // live chunk rows of one sequence, outside the rows
};

// Lengths that sequences are expected to have, equally often; each stands for the lengths from half to one
// and a half times itself.
inline const std::vector<int64_t> kDefaultLengthMix = {1024, 8192, 32768, 150 * 1024};

struct CachePlanOptions {
  int64_t block_tokens = 0;  // 0: the planner's choice; else a power of two
  int context_parallel = 1;  // DCP ranks that share a block's tokens by granules of 16
  std::vector<int64_t> length_mix = kDefaultLengthMix;
};

// What one block size would cost.
struct BlockChoice {
  int64_t block_tokens = 0;
  int64_t row_bytes = 0;
  int state_rows = 0;             // rows of one sequence state; 0 when a layer's state does not fit a row
  double state_waste = 0;         // share of those rows that no state fills
  double expected_waste = 0;      // bytes of a sequence's rows that hold nothing, mean over the length mix
  double expected_allocated = 0;  // bytes of a sequence's rows, mean over the length mix
};

class CachePlan {
 public:
  // Throws Error{kUsage} with both numbers when a layer's state fits no row or a given block is impossible.
  explicit CachePlan(CacheKinds kinds, const CachePlanOptions& options = {});

  const CacheKinds& kinds() const { return kinds_; }
  int context_parallel() const { return context_parallel_; }

  int64_t block_tokens() const { return choice_.block_tokens; }  // positions that a row covers, all ranks
  int64_t rank_tokens() const {                                  // tokens of a block that this rank holds
    return choice_.block_tokens / context_parallel_;
  }
  int64_t row_bytes() const { return choice_.row_bytes; }
  double bytes_per_token() const;  // of the pages, on this rank, without padding: exact in binary
  int64_t state_bytes() const;     // of one sequence state, without padding
  int64_t state_rows() const { return choice_.state_rows; }
  int64_t slot_bytes() const { return kinds_.slot_bytes; }
  const BlockChoice& choice() const { return choice_; }
  const std::vector<BlockChoice>& choices() const { return choices_; }  // ascending block sizes

  // Rows that hold positions [0, tokens) of one sequence.
  int64_t blocks(int64_t tokens) const { return (tokens + block_tokens() - 1) / block_tokens(); }

  // --- addresses: byte offsets inside a row

  // The page-major unit: pages of kPageTokens tokens (more when an entry covers more).
  int64_t page_tokens() const { return page_tokens_; }
  int64_t pages_per_row() const { return rank_tokens() / page_tokens_; }
  // All layers' entries of page `page` of a row: the bytes [page · page_bytes, (page + 1) · page_bytes).
  int64_t page_bytes() const { return page_bytes_; }
  int64_t page_offset(int kind, int layer, int64_t page) const {
    return page * page_bytes_ + layer_offset_[kind][layer];
  }

  // Where a layer's state lies: in the `row`-th of a sequence's state rows; head h's record starts at
  // offset + h · head_stride. Rows are head-major: a range of heads of all layers of a row is one piece.
  struct StateAddress {
    int row = 0;
    int64_t offset = 0, head_stride = 0;
  };
  const StateAddress& state_address(int kind, int layer) const { return state_address_[kind][layer]; }

  // --- DCP: the owner of a position, and where it stands among that rank's tokens
  int owner(int64_t position) const { return static_cast<int>(position / kChunk % context_parallel_); }
  int64_t rank_position(int64_t position) const {
    return position / kChunk / context_parallel_ * kChunk + position % kChunk;
  }

 private:
  BlockChoice consider(int64_t block_tokens, const std::vector<int64_t>& length_mix) const;
  void lay_out_page();
  void lay_out_states();

  CacheKinds kinds_;
  int context_parallel_;
  int64_t page_tokens_ = 0, page_bytes_ = 0;
  std::vector<std::vector<int64_t>> layer_offset_;        // [kind][layer] in a page
  std::vector<std::vector<StateAddress>> state_address_;  // [kind][layer]
  BlockChoice choice_;
  std::vector<BlockChoice> choices_;
};

// What a plan holds in a given memory.
struct CacheCapacity {
  int64_t rows = 0, slots = 0;
  int64_t used_bytes = 0;     // rows and slots
  int64_t tokens = 0;         // positions in the rows that live states leave over
  int64_t full_contexts = 0;  // sequences of full length, each with its own state
};

// `slots` sequences may be live at once; full contexts are of `context` tokens. Throws Error{kUsage} with the
// numbers when not even one sequence of one block fits.
CacheCapacity capacity(const CachePlan& plan, int64_t memory_bytes, int64_t slots, int64_t context);

}  // namespace perigee
