// An operand B of split_mma.cuh as it is kept in memory: one 16-byte load a thread.
#pragma once

#include <cstdint>

namespace perigee::cuda {

struct alignas(16) SplitB {
  uint32_t hi[2], lo[2];  // bf16 pairs
};

}  // namespace perigee::cuda
