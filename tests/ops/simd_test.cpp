// The vector functions give the bits of the scalar ones, on every instruction set this CPU can run and on the
// AVX-512 source emulated.
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "base/philox.h"
#include "base/thread_pool.h"
#include "ops/cpu/arith.h"
#include "ops/cpu/fast/kernels.h"
#include "ops/elementary.h"
#include "ops/simd_probe.h"

namespace perigee {
namespace {

std::vector<std::pair<const char*, const cpu::SimdProbe*>> probes() {
  std::vector<std::pair<const char*, const cpu::SimdProbe*>> all = {
      {"avx2", &cpu::avx2::simd_probe}, {"avx512-emulated", &cpu::avx512_emulated::simd_probe}};
  if (cpu::find_kernels("avx512")) all.emplace_back("avx512", &cpu::avx512::simd_probe);
  return all;
}

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
uint32_t random_bits(int i, int stream) { return random_words(i, stream, 0, 0)[0]; }

// Random bit patterns (every exponent, NaN, infinities) and values of ordinary size, by turns.
float any_float(int i) {
  const uint32_t word = random_bits(i, 1);
  if (i % 2) return std::bit_cast<float>(word);
  return (static_cast<int32_t>(word) * 0x1p-31f) * (i % 4 ? 100.0f : 2.0f);
}

TEST(Simd, ElementaryFunctionsEqualTheScalarOnes) {
  const FlushSubnormals flush;
  for (const auto& [name, probe] : probes()) {
    const std::tuple<const char*, cpu::SimdProbe::Unary, float (*)(float)> functions[] = {
        {"exp", probe->exp, cpu::exp},       {"log", probe->log, cpu::log},
        {"silu", probe->silu, cpu::silu},    {"sigmoid", probe->sigmoid, cpu::sigmoid},
        {"tanh", probe->tanh, cpu::tanh},    {"softplus", probe->softplus, cpu::softplus},
        {"rsqrt", probe->rsqrt, cpu::rsqrt},
    };
    for (const auto& [function, vector, scalar] : functions) {
      for (int i = 0; i < 200000; i += 16) {
        float x[16], y[16];
        for (int l = 0; l < 16; ++l) x[l] = any_float(i + l);
        vector(x, y);
        for (int l = 0; l < 16; ++l) {
          const float expected = scalar(x[l]);
          if (expected != expected) {
            ASSERT_NE(y[l], y[l]) << name << " " << function << " " << x[l];
          } else {
            ASSERT_EQ(bits_of(y[l]), bits_of(expected)) << name << " " << function << " " << x[l];
          }
        }
      }
    }
  }
}

TEST(Simd, RoundingTreeAndPairProductsEqualTheScalarOnes) {
  const FlushSubnormals flush;
  for (const auto& [name, probe] : probes()) {
    for (int i = 0; i < 200000; i += 16) {
      float x[16];
      bf16 rounded[16];
      for (int l = 0; l < 16; ++l) x[l] = any_float(i + l);
      probe->to_bf16(x, rounded);
      for (int l = 0; l < 16; ++l) ASSERT_EQ(rounded[l], float_to_bf16(x[l])) << name << " " << x[l];

      float acc[16], expected[16];
      bf16 a[32], b[32];
      for (int l = 0; l < 32; ++l) {
        a[l] =
            static_cast<bf16>(random_bits(i + l, 2) & 0xBFFF);  // |x| < 2: finite sums, subnormals among them
        b[l] = static_cast<bf16>(random_bits(i + l, 3) & 0xBFFF);
      }
      for (int l = 0; l < 16; ++l)
        acc[l] = expected[l] = std::bit_cast<float>(random_bits(i + l, 4) & 0xBFFFFFFFu);
      ASSERT_EQ(bits_of(probe->tree(acc)), bits_of(cpu::tree16(acc))) << name;
      probe->pair_fma(a, b, acc);
      for (int l = 0; l < 16; ++l) {
        const uint32_t pa = cpu::load_pair(a + 2 * l), pb = cpu::load_pair(b + 2 * l);
        expected[l] = std::fma(cpu::even_of(pa), cpu::even_of(pb),
                               std::fma(cpu::odd_of(pa), cpu::odd_of(pb), expected[l]));
        ASSERT_EQ(bits_of(acc[l]), bits_of(expected[l])) << name << " lane " << l;
      }
    }
  }
}

}  // namespace
}  // namespace perigee
