// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a
// random number that is a pure function of its key and counter. All randomness of perigee comes from here,
// keyed by (seed, stream, position), so that no draw depends on what else ran.
#pragma once

#include <array>
#include <cstdint>

#include "base/host_device.h"

namespace perigee {

using Philox4 = std::array<uint32_t, 4>;

PERIGEE_HD inline Philox4 philox4x32(Philox4 counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// Four words for (seed, stream, position, block).
PERIGEE_HD inline Philox4 random_words(uint64_t seed, uint32_t stream, uint64_t position, uint32_t block) {
  return philox4x32({block, static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), stream},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

// Uniform in (0, 1): 23 bits plus one half, so that neither end occurs and the value is exact in fp32.
PERIGEE_HD inline float uniform_open(uint32_t word) {
  return (static_cast<float>(word >> 9) + 0.5f) * 0x1p-23f;
}

}  // namespace perigee
