// PoolMemory: one stretch of address space, zero at first, that takes physical memory only where it is
// touched. A pool can so be as large as a machine allows and cost what is in use.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perigee {

class PoolMemory {
 public:
  // Throws Error{kUnsupported} with the size when the system refuses.
  explicit PoolMemory(int64_t bytes);
  ~PoolMemory();
  PoolMemory(const PoolMemory&) = delete;

  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace perigee
