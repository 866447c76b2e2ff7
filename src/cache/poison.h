// Memory that nobody may read holds NaN in test builds: 0xFF bytes are a NaN in fp32, bf16, e4m3 and e8m0.
#pragma once

#include <cstdint>

#include "base/memory.h"

namespace perigee {

#ifdef PERIGEE_TEST_HOOKS
inline void poison(Memory& memory, void* data, int64_t bytes) { memory.fill(data, 0xFF, bytes); }
#else
inline void poison(Memory&, void*, int64_t) {}
#endif

}  // namespace perigee
