// The elementary functions of x86-bf16-v1 against libm in double, over dense sweeps of bit patterns, with the
// bounds that their header states. Subnormals are flushed, as in every worker.
#include "ops/elementary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/thread_pool.h"

namespace perigee {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The distance of `got` from `want` in units of fp32's spacing at `want`.
double ulps(float got, double want) {
  const int exponent = std::max(std::ilogb(want), -126);
  return std::fabs(got - want) / std::ldexp(1.0, exponent - 23);
}

struct Worst {
  double ulps = 0;
  float at = 0;
};

// The worst error over a million bit patterns of [low, high], 0 ≤ low, and with `both_signs` of their
// negatives; where the exact result is subnormal, only that the value is below the smallest normal one too.
template <typename F, typename Exact>
Worst sweep(F f, Exact exact, float low, float high, bool both_signs) {
  const uint32_t begin = std::bit_cast<uint32_t>(low), end = std::bit_cast<uint32_t>(high);
  const uint32_t stride = (end - begin) / 1000000 + 1;
  Worst worst;
  for (uint64_t bits = begin; bits <= end; bits += stride) {
    for (int sign = 0; sign <= (both_signs ? 1 : 0); ++sign) {
      const float x = std::bit_cast<float>(static_cast<uint32_t>(bits) | (sign ? 0x80000000u : 0u));
      const double want = exact(static_cast<double>(x));
      const float got = f(x);
      if (std::fabs(want) < 0x1p-126) {
        EXPECT_LE(std::fabs(got), 0x1p-126f) << x;
        continue;
      }
      if (const double e = ulps(got, want); !(e <= worst.ulps)) worst = {e, x};
    }
  }
  return worst;
}

class Elementary : public testing::Test {
 protected:
  // The worst error must be within the stated bound, and not so far inside that the statement says nothing.
  static void expect_bound(const char* name, const Worst& worst, double stated) {
    EXPECT_LE(worst.ulps, stated) << name << " at " << worst.at;
    EXPECT_GE(worst.ulps, stated / 3) << name << ": the header's bound could be tighter";
    std::printf("%-12s %.3f ulp at %g\n", name, worst.ulps, worst.at);
  }
  FlushSubnormals flush_;
};

TEST_F(Elementary, StatedBoundsHold) {
  expect_bound("exp", sweep(cpu::exp, [](double x) { return std::exp(x); }, 0x1p-126f, 87.33f, true), 1);
  expect_bound("log",
               sweep(cpu::log, [](double x) { return std::log(x); }, 0x1p-126f, 0x1.fffffep127f, false), 2);
  expect_bound("log near 1", sweep(cpu::log, [](double x) { return std::log(x); }, 0.7f, 1.42f, false), 2);
  expect_bound("log1p_unit",
               sweep(cpu::log1p_unit, [](double x) { return std::log1p(x); }, 0x1p-125f, 1.0f, false), 2);
  expect_bound(
      "sigmoid",
      sweep(cpu::sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, 0x1p-126f, 200.0f, true), 2.5);
  expect_bound(
      "softplus",
      sweep(
          cpu::softplus, [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); },
          0x1p-126f, 86.0f, true),
      2.5);
  expect_bound(
      "silu", sweep(cpu::silu, [](double x) { return x / (1 + std::exp(-x)); }, 0x1p-126f, 88.0f, true), 2.5);
  expect_bound("tanh", sweep(cpu::tanh, [](double x) { return std::tanh(x); }, 0x1p-126f, 200.0f, true), 3);
  expect_bound(
      "rsqrt",
      sweep(cpu::rsqrt, [](double x) { return 1 / std::sqrt(x); }, 0x1p-126f, 0x1.fffffep127f, false), 1.5);
}

// Its bound grows with |x|, and is neither passed nor far away.
TEST_F(Elementary, ExpDecay) {
  double worst = 0;
  for (uint32_t bits = 0; bits <= std::bit_cast<uint32_t>(87.0f); bits += 997) {
    const double x = -std::bit_cast<float>(bits), want = std::exp(x);
    const double error = std::fabs(cpu::exp_decay(static_cast<float>(x)) - want) / want;
    worst = std::max(worst, error / (1.3e-7 - 1.4e-8 * x));
  }
  EXPECT_LE(worst, 1.0);
  EXPECT_GE(worst, 0.5) << "the header's bound could be tighter";
  EXPECT_EQ(cpu::exp_decay(0.0f), 1.0f);
  EXPECT_EQ(cpu::exp_decay(-kInf), cpu::exp_decay(-87.0f));
  EXPECT_TRUE(std::isnan(cpu::exp_decay(kNan)));
}

TEST_F(Elementary, Exp2Decay) {
  expect_bound("exp2_decay",
               sweep([](float x) { return cpu::exp2_decay(-x); }, [](double x) { return std::exp2(-x); },
                     0x1p-126f, 125.0f, false),
               1);
  EXPECT_EQ(cpu::exp2_decay(0.0f), 1.0f);
  EXPECT_EQ(cpu::exp2_decay(-kInf), 0x1p-125f);
  EXPECT_TRUE(std::isnan(cpu::exp2_decay(kNan)));
}

TEST_F(Elementary, Edges) {
  EXPECT_EQ(cpu::exp(0.0f), 1.0f);
  EXPECT_EQ(cpu::exp(-0.0f), 1.0f);
  EXPECT_EQ(cpu::exp(kInf), kInf);
  EXPECT_EQ(cpu::exp(-kInf), 0.0f);
  EXPECT_LT(cpu::exp(88.37f), kInf);
  EXPECT_EQ(cpu::exp(88.38f), kInf);
  EXPECT_GT(cpu::exp(-87.33f), 0.0f);
  EXPECT_EQ(cpu::exp(-87.34f), 0.0f);
  EXPECT_EQ(cpu::log(1.0f), 0.0f);
  EXPECT_EQ(cpu::log(0.0f), -kInf);
  EXPECT_EQ(cpu::log(-0.0f), -kInf);
  EXPECT_EQ(cpu::log(kInf), kInf);
  volatile float subnormal = 1e-40f;  // volatile: or the compiler computes with it, unflushed
  EXPECT_EQ(cpu::log(subnormal), -kInf);
  volatile float smallest = 0x1p-126f, low = -87.0f;
  EXPECT_EQ(cpu::log1p_unit(smallest), 0.0f);
  EXPECT_EQ(cpu::softplus(low), 0.0f);
  EXPECT_EQ(cpu::log1p_unit(0.0f), 0.0f);
  EXPECT_EQ(cpu::sigmoid(0.0f), 0.5f);
  EXPECT_EQ(cpu::sigmoid(kInf), 1.0f);
  EXPECT_EQ(cpu::sigmoid(-kInf), 0.0f);
  EXPECT_EQ(cpu::softplus(kInf), kInf);
  EXPECT_EQ(cpu::softplus(-kInf), 0.0f);
  EXPECT_EQ(cpu::silu(0.0f), 0.0f);
  EXPECT_EQ(cpu::silu(kInf), kInf);
  EXPECT_EQ(cpu::silu(-89.0f), 0.0f);
  EXPECT_EQ(cpu::tanh(0.0f), 0.0f);
  EXPECT_EQ(cpu::tanh(kInf), 1.0f);
  EXPECT_EQ(cpu::tanh(-kInf), -1.0f);
  EXPECT_EQ(cpu::rsqrt(0.0f), kInf);
  EXPECT_EQ(cpu::rsqrt(kInf), 0.0f);
  for (float (*f)(float) :
       {cpu::exp, cpu::log, cpu::log1p_unit, cpu::sigmoid, cpu::softplus, cpu::silu, cpu::tanh, cpu::rsqrt}) {
    EXPECT_TRUE(std::isnan(f(kNan)));
  }
  EXPECT_TRUE(std::isnan(cpu::log(-1.0f)));
  EXPECT_TRUE(std::isnan(cpu::rsqrt(-1.0f)));
}

TEST_F(Elementary, OddAndWithinRange) {
  for (uint32_t bits = 0; bits < 0x7F800000u; bits += 9973) {
    const float x = std::bit_cast<float>(bits);
    ASSERT_EQ(cpu::tanh(-x), -cpu::tanh(x)) << x;
    ASSERT_LE(cpu::tanh(x), 1.0f) << x;
    ASSERT_LE(cpu::sigmoid(x), 1.0f) << x;
    ASSERT_GE(cpu::sigmoid(-x), 0.0f) << x;
    ASSERT_GE(cpu::softplus(-x), 0.0f) << x;
  }
}

}  // namespace
}  // namespace perigee
