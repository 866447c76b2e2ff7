// The product sum of x86-bf16-v1: one row or four, the documented order, and the instruction it is named
// after.
#include "ops/cpu/arith.h"

#include <gtest/gtest.h>
#include <immintrin.h>

#include <cstring>

#include "base/thread_pool.h"
#include "ops/reference.h"

namespace perigee {
namespace {

using test::Random;

bool same_bits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

// The order that arith.h documents, from its words alone: 16 partial sums, pairs odd element first, a tree
// with strides 8, 4, 2, 1, and zeros up to a multiple of 32.
float documented(std::vector<bf16> x, std::vector<bf16> y) {
  x.resize((x.size() + 31) / 32 * 32);
  y.resize(x.size());
  std::vector<float> partial(16, 0.0f);
  for (size_t pair = 0; pair < x.size() / 2; ++pair) {
    float& sum = partial[pair % 16];
    const size_t even = 2 * pair, odd = even + 1;
    sum = std::fma(bf16_to_float(x[odd]), bf16_to_float(y[odd]), sum);
    sum = std::fma(bf16_to_float(x[even]), bf16_to_float(y[even]), sum);
  }
  for (size_t stride : {8, 4, 2, 1}) {
    for (size_t l = 0; l < stride; ++l) partial[l] += partial[l + stride];
  }
  return partial[0];
}

std::vector<int> lengths() {
  std::vector<int> n;
  for (int i = 1; i <= 130; ++i) n.push_back(i);
  for (int i : {576, 1536, 4095, 4096, 7168}) n.push_back(i);
  return n;
}

TEST(ProductSum, OneRowOrFourInTheDocumentedOrder) {
  Random random(1);
  FlushSubnormals flush;
  for (int n : lengths()) {
    const int stride = n + random.below(5);
    const std::vector<bf16> x = random.bf16s(n), y = random.bf16s(4 * stride);
    float four[4];
    cpu::dot_rows<4>(x.data(), y.data(), stride, n, four);
    for (int r = 0; r < 4; ++r) {
      const std::vector<bf16> row(y.begin() + r * stride, y.begin() + r * stride + n);
      float one;
      cpu::dot_rows<1>(x.data(), row.data(), 0, n, &one);
      ASSERT_TRUE(same_bits(one, four[r])) << "length " << n << " row " << r;
      ASSERT_TRUE(same_bits(one, documented(x, row))) << "length " << n << " row " << r;
      ASSERT_TRUE(same_bits(one, cpu::dot(x.data(), row.data(), n)));
    }
  }
}

TEST(ProductSum, CloseToDouble) {
  Random random(2);
  for (int n : lengths()) {
    const std::vector<bf16> x = random.bf16s(n), y = random.bf16s(n);
    double sum = 0, size = 0;
    for (int i = 0; i < n; ++i) {
      const double product = double{bf16_to_float(x[i])} * bf16_to_float(y[i]);
      sum += product;
      size += std::fabs(product);
    }
    // Each partial sum takes n/16 terms and the tree four; rounding errors do not all point one way.
    ASSERT_NEAR(cpu::dot(x.data(), y.data(), n), sum, size * 0x1p-24 * 4) << "length " << n;
  }
}

TEST(ProductSum, SumOf16PartialsInAscendingOrder) {
  Random random(3);
  for (int n : {16, 128, 512, 2304}) {
    const std::vector<float> x = random.floats(n);
    std::vector<float> partial(16, 0.0f);
    for (int i = 0; i < n; ++i) partial[i % 16] = std::fma(x[i], x[i], partial[i % 16]);
    for (size_t stride : {8, 4, 2, 1}) {
      for (size_t l = 0; l < stride; ++l) partial[l] += partial[l + stride];
    }
    ASSERT_TRUE(same_bits(cpu::sum_of_squares(x.data(), n), partial[0])) << n;
  }
}

__attribute__((target("avx512bf16,avx512vl,avx512f"))) float by_instruction(const bf16* x, const bf16* y,
                                                                            int n) {
  __m512 sum = _mm512_setzero_ps();
  for (int k = 0; k < n; k += 32) {
    const int left = n - k;
    bf16 a[32] = {}, b[32] = {};
    std::memcpy(a, x + k, static_cast<size_t>(left < 32 ? left : 32) * sizeof(bf16));
    std::memcpy(b, y + k, static_cast<size_t>(left < 32 ? left : 32) * sizeof(bf16));
    sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_loadu_si512(a), (__m512bh)_mm512_loadu_si512(b));
  }
  alignas(64) float partial[16];
  _mm512_store_ps(partial, sum);
  return cpu::tree16(partial);
}

TEST(ProductSum, TheBitsOfVdpbf16ps) {
  if (!__builtin_cpu_supports("avx512bf16")) GTEST_SKIP() << "this CPU has no AVX512-BF16 to compare with";
  Random random(4);
  FlushSubnormals flush;
  for (int n : lengths()) {
    for (float scale :
         {1.0f, 1e-18f, 1e18f}) {  // products around the smallest normal numbers, and far above one
      const std::vector<bf16> x = random.bf16s(n, scale), y = random.bf16s(n, scale);
      ASSERT_TRUE(same_bits(cpu::dot(x.data(), y.data(), n), by_instruction(x.data(), y.data(), n)))
          << "length " << n << " scale " << scale;
    }
  }
}

}  // namespace
}  // namespace perigee
