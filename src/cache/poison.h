// Memory that nobody may read holds NaN in test builds: 0xFF bytes are a NaN in fp32, bf16, e4m3 and e8m0.
#pragma once

#include <cstddef>
#include <cstring>

namespace perigee {

#ifdef PERIGEE_TEST_HOOKS
inline void poison(void* data, size_t bytes) { std::memset(data, 0xFF, bytes); }
#else
inline void poison(void*, size_t) {}
#endif

}  // namespace perigee
