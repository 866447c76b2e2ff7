// Workspace of a step: memory taken in the order of use and given back all at once at the end of a scope,
// kept for the next step. Test builds fill every piece with NaN when it is taken, so that nothing stale can
// be read unnoticed.
#pragma once

#include <cstring>
#include <vector>

#include "base/tensor.h"

namespace perigee {

class Arena {
 public:
  template <typename T>
  T* take(int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    if (used_ == buffers_.size()) buffers_.emplace_back();
    Buffer& buffer = buffers_[used_++];
    if (buffer.size() < bytes) buffer = Buffer(bytes);
#ifdef PERIGEE_TEST_HOOKS
    std::memset(buffer.data(), 0xFF, bytes);
#endif
    return buffer.as<T>();
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
  std::vector<Buffer> buffers_;
  size_t used_ = 0;
};

}  // namespace perigee
