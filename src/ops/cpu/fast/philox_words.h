// random_words() of base/philox.h, eight blocks at a time.
#pragma once

#include <cstdint>

namespace perigee::cpu {

struct PhiloxKey {
  uint64_t seed;
  uint32_t stream;
  uint64_t position;
};

// words[4·b + i] = random_words(seed, stream, position, b)[i] for b < blocks, a multiple of 8.
void philox_words(const PhiloxKey& key, int64_t blocks, uint32_t* words);

}  // namespace perigee::cpu
