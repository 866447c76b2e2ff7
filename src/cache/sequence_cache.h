// SequenceCache: everything a sequence keeps between steps, as a view on the pool. Its tokens' pages lie in
// rows that it may share with other sequences and the prefix tree; its KDA state in state rows at the last
// stored chunk start; the rows of the open chunk in a slot of its own. Dropping tokens un-does them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/memory.h"
#include "cache/checkpoint.h"

namespace perigee {

class SequenceCache {
 public:
  explicit SequenceCache(CachePool& pool);
  // Goes on from a checkpoint; `rows` are those of the blocks before it. Shared rows are copied before the
  // first write into them, and S is read where it lies until the next chunk end is stored.
  SequenceCache(CachePool& pool, std::vector<Row> rows, const Checkpoint& checkpoint);
  // Alone, in a pool of its own of up to `tokens` tokens; ready for a stage without reserve().
  explicit SequenceCache(const CacheShape& shape, Memory& memory = host_memory(),
                         int64_t tokens = int64_t{1} << 20);
  SequenceCache(SequenceCache&&) = default;
  SequenceCache& operator=(SequenceCache&& other) noexcept;
  // A second sequence with the same tokens. It shares the rows; throws like reserve() when no slot is free.
  SequenceCache fork() const;

  // The same tokens as `other`, an equal cache in another memory that lies on the host; this one is empty.
  void upload(const SequenceCache& other);

  int64_t length() const { return length_; }
  // The stored chunk start: where checkpoint() stands, and what a sequence cannot shrink below.
  int64_t base() const { return base_.empty() ? length_ / kChunk * kChunk : base_[0]; }

  // Rows that reserve() would take: blocks, the copy of a shared last row, and state rows when the step may
  // store a chunk end.
  int64_t rows_needed(int64_t tokens, int64_t accepted) const;
  // Makes room for a step that ends with positions [0, tokens), of which those below `accepted` can no longer
  // be dropped. Throws Error{kInternal} when the pool has fewer free rows or no slot: callers make room
  // first.
  void reserve(int64_t tokens, int64_t accepted);
  void reserve(int64_t tokens) { reserve(tokens, tokens); }
  // The sequence now has `length` tokens: more after a step, fewer after a rejected draft. Test builds poison
  // what is dropped.
  void set_length(int64_t length);

  PageTable pages(int attention_layer) const;
  KdaSlot slot(int kda_layer);
  // One head's S before the first token.
  const float* zero_state() const { return pool_->zero_state(); }
  // Page pointers that pages() hands out.
  int64_t page_count() const { return static_cast<int64_t>(pages_.size()); }

  // Rows of the blocks that positions [0, length) touch.
  std::span<const Row> rows() const { return {rows_.data(), static_cast<size_t>(blocks(length_))}; }
  // The state at base(), shared: the sequence stores its next chunk end elsewhere.
  Checkpoint checkpoint();
  // Adds this sequence's references to references[row], for CachePool::check_integrity.
  void count_references(std::vector<int64_t>& references) const;

 private:
  explicit SequenceCache(std::shared_ptr<CachePool> own_pool);
  int64_t blocks(int64_t tokens) const { return pool_->plan().blocks(tokens); }
  bool copies_last_row(int64_t tokens) const;
  bool needs_state_rows(int64_t accepted) const;
  Row take_row();
  void take_slot();
  void add_row(Row row);                // the next block's
  void point_pages(int64_t block);      // at rows_[block]
  void drop(int64_t from, int64_t to);  // poisons positions
  enum class ConvInputs { kKeep, kRestore };
  void copy_conv_inputs(int64_t position, ConvInputs direction);  // between the ring and state_

  std::shared_ptr<CachePool> own_pool_;  // first, so that it outlives the rows
  CachePool* pool_;
  SlotLayout slot_layout_;
  std::vector<Row> rows_;         // [blocks]
  bool owns_last_row_ = false;    // appends to it in place; others who hold it read what was there before
  std::vector<uint8_t*> pages_;   // of the rows, each with every attention layer's records
  std::vector<int> index_layer_;  // attention layer → its place among those with index keys, or −1
  Slot slot_;
  std::vector<Row> state_;              // S at base(); none while that is 0
  std::vector<Row> next_state_;         // where the next chunk end goes when state_ is shared
  std::vector<int64_t> base_;           // [kda_layers] all equal between steps
  int64_t stored_base_ = 0;             // of state_
  bool state_has_conv_inputs_ = false;  // in its rows, beside the ring
  int64_t length_ = 0;
};

}  // namespace perigee
