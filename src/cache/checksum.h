// The checksum of cache bytes in debug checks and tiers: FNV-1a over 8-byte words.
#pragma once

#include <cstdint>
#include <cstring>

namespace perigee {

constexpr uint64_t kChecksumStart = 0xCBF29CE484222325u, kChecksumPrime = 0x100000001B3u;

// `bytes` is a multiple of 8; `hash` goes on from what came before.
inline uint64_t checksum(const uint8_t* data, int64_t bytes, uint64_t hash = kChecksumStart) {
  for (int64_t at = 0; at < bytes; at += 8) {
    uint64_t word;
    std::memcpy(&word, data + at, 8);
    hash = (hash ^ word) * kChecksumPrime;
  }
  return hash;
}

}  // namespace perigee
