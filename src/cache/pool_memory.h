// PoolMemory: one stretch of memory, zero at first. On the host it is address space that takes physical
// memory only where it is touched: a pool can so be as large as a machine allows and cost what is in use.
#pragma once

#include <cstdint>

#include "base/memory.h"

namespace perigee {

class PoolMemory {
 public:
  // Throws Error{kUnsupported} with the size when the system refuses.
  PoolMemory(Memory& memory, int64_t bytes);
  ~PoolMemory();
  PoolMemory(const PoolMemory&) = delete;

  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  Memory& memory_;
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace perigee
