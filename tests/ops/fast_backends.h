// What the tests of fast stages share: the backends under test, and equality of bits.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "ops/cpu/fast/backend.h"

namespace perigee::test {

// A fast backend for every instruction set this CPU can run, and the AVX-512 source emulated.
struct FastCase {
  std::string name;
  std::unique_ptr<cpu::FastBackend> backend;
  bool slow;  // emulated: small cases only
};
inline std::vector<FastCase> fast_backends(int threads) {
  std::vector<FastCase> out;
  for (const char* name : {"avx2", "avx512", "avx512-emulated"}) {
    if (const cpu::Kernels* kernels = cpu::find_kernels(name)) {
      out.push_back({.name = name,
                     .backend = std::make_unique<cpu::FastBackend>(threads, *kernels),
                     .slow = std::string(name) == "avx512-emulated"});
    }
  }
  return out;
}

inline bool is_nan(float x) { return x != x; }
inline bool is_nan(bf16 x) { return (x & 0x7FFF) > 0x7F80; }
inline uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
inline uint32_t bits_of(bf16 x) { return x; }
inline uint32_t bits_of(int32_t x) { return static_cast<uint32_t>(x); }
inline bool is_nan(int32_t) { return false; }

// Equal bits; any NaN equals any other. Says where the first difference is.
template <typename T>
testing::AssertionResult same_bits(const std::vector<T>& got, const std::vector<T>& want) {
  if (got.size() != want.size())
    return testing::AssertionFailure() << got.size() << " values, not " << want.size();
  for (size_t i = 0; i < got.size(); ++i) {
    if (bits_of(got[i]) == bits_of(want[i]) || (is_nan(got[i]) && is_nan(want[i]))) continue;
    return testing::AssertionFailure() << "bits " << std::hex << bits_of(got[i]) << " instead of "
                                       << bits_of(want[i]) << " at " << std::dec << i << " of " << got.size();
  }
  return testing::AssertionSuccess();
}

}  // namespace perigee::test
