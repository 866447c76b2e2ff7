#include "cache/cache_pool.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "cache/poison.h"

namespace perigee {

namespace {

// The free ids, as a heap with the lowest at the front.
template <typename Id>
Id pop_lowest(std::vector<Id>& heap) {
  std::pop_heap(heap.begin(), heap.end(), std::greater<>());
  const Id id = heap.back();
  heap.pop_back();
  return id;
}

template <typename Id>
void push(std::vector<Id>& heap, Id id) {
  heap.push_back(id);
  std::push_heap(heap.begin(), heap.end(), std::greater<>());
}

}  // namespace

Row::Row(const Row& other) : pool_(other.pool_), id_(other.id_) {
  if (pool_) pool_->count(id_, 1, 0);
}
Row::~Row() {
  if (pool_) pool_->release(id_);
}
bool Row::shared() const { return pool_ && pool_->references_[id_] > 1; }
uint8_t* Row::data() const { return pool_->row_data(id_); }

Slot::~Slot() {
  if (pool_) pool_->release_slot(id_);
}
uint8_t* Slot::data() const { return pool_->slot_memory_.data() + id_ * pool_->plan_.slot_bytes(); }

CachePool::CachePool(CacheShape shape, CachePlan plan, int64_t rows, int64_t slots, Memory& memory)
    : memory_(memory),
      shape_(std::move(shape)),
      plan_(std::move(plan)),
      slots_(slots),
      row_memory_(memory, rows * plan_.row_bytes()),
      slot_memory_(memory, slots * plan_.slot_bytes()),
      zero_state_(memory, kKdaStateBytes),
      references_(rows, 0),
      kept_(rows, 0),
      free_rows_(rows),
      free_slots_(slots) {
  std::iota(free_rows_.begin(), free_rows_.end(), 0);  // ascending: a heap
  std::iota(free_slots_.begin(), free_slots_.end(), 0);
}

Row CachePool::take_row() {
  if (free_rows_.empty()) return {};
  const RowId row = pop_lowest(free_rows_);
  if (row >= touched_rows_) poison(memory_, row_data(row), plan_.row_bytes());
  touched_rows_ = std::max(touched_rows_, row + 1);
  count(row, 1, 0);
  return {this, row};
}

void CachePool::count(RowId row, int references, int kept) {
  const auto alone = [&] { return references_[row] > 0 && kept_[row] == references_[row]; };
  kept_rows_ -= alone();
  references_[row] += references;
  kept_[row] += kept;
  kept_rows_ += alone();
}

void CachePool::release(RowId row) {
  count(row, -1, 0);
  if (references_[row] > 0) return;
  poison(memory_, row_data(row), plan_.row_bytes());
  push(free_rows_, row);
}

Slot CachePool::take_slot() {
  if (free_slots_.empty()) return {};
  Slot slot(this, pop_lowest(free_slots_));
  poison(memory_, slot.data(), plan_.slot_bytes());
  return slot;
}

void CachePool::release_slot(int slot) {
  poison(memory_, slot_memory_.data() + slot * plan_.slot_bytes(), plan_.slot_bytes());
  push(free_slots_, slot);
}

void CachePool::check_integrity(const std::vector<int64_t>& expected) const {
  check(expected.size() == references_.size(), "check_integrity: one count per row");
  std::vector<bool> is_free(references_.size(), false);
  for (RowId row : free_rows_) {
    if (is_free[row]) fail(ErrorCode::kInternal, "cache row {} is free twice", row);
    is_free[row] = true;
  }
  for (size_t row = 0; row < references_.size(); ++row) {
    if (references_[row] != expected[row] || is_free[row] != (expected[row] == 0)) {
      fail(ErrorCode::kInternal, "cache row {}: {} holders, {} references{}", row, expected[row],
           references_[row], is_free[row] ? ", free" : "");
    }
#ifdef PERIGEE_TEST_HOOKS
    if (!is_free[row] || static_cast<RowId>(row) >= touched_rows_) continue;
    std::vector<uint8_t> bytes(plan_.row_bytes());
    memory_.download(bytes.data(), row_memory_.data() + static_cast<int64_t>(row) * plan_.row_bytes(),
                     plan_.row_bytes());
    if (std::any_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b != 0xFF; }))
      fail(ErrorCode::kInternal, "cache row {} was written after it was freed", row);
#endif
  }
}

}  // namespace perigee
