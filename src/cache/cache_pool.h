// CachePool: the memory of the cache. One arena of equal rows, shared by attention blocks and sequence
// states, and one of slots for live chunk rows; rows are counted references, so that sequences and the prefix
// tree can share them. Nothing here knows what a row means: that is CachePlan's.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cache/cache_plan.h"
#include "cache/cache_shape.h"
#include "cache/pool_memory.h"

namespace perigee {

using RowId = int32_t;

class CachePool;

// A counted reference to a row of a pool: copies share the row, and the last one to go frees it. The pool
// must outlive its rows. Not for use from several threads at once.
class Row {
 public:
  Row() = default;
  Row(const Row& other);
  Row(Row&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_) {}
  Row& operator=(Row other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~Row();

  explicit operator bool() const { return pool_ != nullptr; }
  RowId id() const { return id_; }
  bool shared() const;  // somebody else holds it too
  uint8_t* data() const;

 private:
  friend class CachePool;
  Row(CachePool* pool, RowId id) : pool_(pool), id_(id) {}
  CachePool* pool_ = nullptr;
  RowId id_ = -1;
};

// The live chunk rows of one sequence; owned by it alone.
class Slot {
 public:
  Slot() = default;
  Slot(Slot&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_) {}
  Slot& operator=(Slot&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~Slot();

  explicit operator bool() const { return pool_ != nullptr; }
  int id() const { return id_; }
  uint8_t* data() const;

 private:
  friend class CachePool;
  Slot(CachePool* pool, int id) : pool_(pool), id_(id) {}
  CachePool* pool_ = nullptr;
  int id_ = -1;
};

class CachePool {
 public:
  // Rows and slots lie in `memory`, which must outlive the pool. On the host address space is reserved at
  // once, and the system fills in memory as rows are first used.
  CachePool(CacheShape shape, CachePlan plan, int64_t rows, int64_t slots, Memory& memory = host_memory());
  CachePool(const CachePool&) = delete;

  Memory& memory() const { return memory_; }
  const CacheShape& shape() const { return shape_; }
  const CachePlan& plan() const { return plan_; }
  int64_t rows() const { return static_cast<int64_t>(references_.size()); }
  int64_t free_rows() const { return static_cast<int64_t>(free_rows_.size()); }
  int64_t slots() const { return slots_; }
  int64_t free_slots() const { return static_cast<int64_t>(free_slots_.size()); }
  int64_t bytes() const { return row_memory_.bytes() + slot_memory_.bytes(); }

  // A row or slot that nobody holds, the lowest id, its bytes undefined (NaN in test builds, like every freed
  // byte). Empty when none is free.
  Row take_row();
  Slot take_slot();

  int64_t references(RowId row) const { return references_[row]; }
  // A prefix tree says of one of its references to a row that it would give it up for room, or no longer has
  // it.
  void mark_kept(RowId row) { count(row, 0, 1); }
  void unmark_kept(RowId row) { count(row, 0, -1); }
  // Rows that nobody holds but trees.
  int64_t kept_rows() const { return kept_rows_; }
  uint8_t* row_data(RowId row) { return row_memory_.data() + int64_t{row} * plan_.row_bytes(); }
  // One head's S before the first token, for every layer and head.
  const float* zero_state() const { return zero_state_.as<const float>(); }

  // Throws Error{kInternal} unless row r is held by exactly expected[r] references and the others are free,
  // once each; in test builds also unless every freed byte is as it was left.
  void check_integrity(const std::vector<int64_t>& expected) const;

 private:
  friend class Row;
  friend class Slot;
  void count(RowId row, int references, int kept);
  void release(RowId row);
  void release_slot(int slot);

  Memory& memory_;
  CacheShape shape_;
  CachePlan plan_;
  int64_t slots_;
  PoolMemory row_memory_, slot_memory_;
  MemoryBlock zero_state_;
  std::vector<int32_t> references_;  // [rows]
  std::vector<int32_t> kept_;        // [rows] those of them that trees hold
  int64_t kept_rows_ = 0;            // with all of one or more references kept
  std::vector<RowId> free_rows_;     // heap, lowest id first
  std::vector<int> free_slots_;      // heap, lowest id first
  RowId touched_rows_ = 0;           // rows below have been taken at least once
};

}  // namespace perigee
