// Workspace of a step: memory taken in the order of use and given back all at once at the end of a scope,
// kept for the next step. Test builds fill every piece with NaN when it is taken, so that nothing stale can
// be read unnoticed.
#pragma once

#include <vector>

#include "base/memory.h"

namespace perigee {

class Arena {
 public:
  explicit Arena(Memory& memory = host_memory()) : memory_(&memory) {}

  template <typename T>
  T* take(int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    if (used_ == blocks_.size()) blocks_.emplace_back();
    MemoryBlock& block = blocks_[used_++];
    if (!block.data() || block.bytes() < bytes) block = MemoryBlock(*memory_, bytes);
#ifdef PERIGEE_TEST_HOOKS
    memory_->fill(block.data(), 0xFF, bytes);
#endif
    return block.as<T>();
  }

  // Gives back what was taken since it was made.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), mark_(arena.used_) {}
    ~Scope() { arena_.used_ = mark_; }
    Scope(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t mark_;
  };

 private:
  Memory* memory_;
  std::vector<MemoryBlock> blocks_;
  size_t used_ = 0;
};

}  // namespace perigee
