// Element codecs, bit for bit: decoding against tables made from exact fractions, encoding against a search
// of all codes.
#include <gtest/gtest.h>

#include "codec_search.h"
#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "tables.h"

namespace perigee {

namespace {

uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }

std::vector<double> magnitudes(const uint32_t* table, int count) {
  std::vector<double> out;
  for (int i = 0; i < count; ++i) out.push_back(std::bit_cast<float>(table[i]));
  return out;
}

const float kNan = std::bit_cast<float>(0x7FC00000u), kNegativeNan = std::bit_cast<float>(0xFF812345u);

}  // namespace

TEST(Bf16, DecodesEveryCode) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const uint32_t exponent = code >> 7 & 255, mantissa = code & 127;
    const float x = bf16_to_float(static_cast<bf16>(code));
    if (exponent == 255) {
      EXPECT_EQ(std::isnan(x), mantissa != 0);
      EXPECT_EQ(std::isinf(x), mantissa == 0);
    } else {
      const double m = exponent ? 1.0 + mantissa / 128.0 : mantissa / 128.0;
      EXPECT_EQ(std::fabs(static_cast<double>(x)),
                std::ldexp(m, exponent ? static_cast<int>(exponent) - 127 : -126));
    }
    EXPECT_EQ(std::signbit(x), code >> 15 != 0);
    const uint32_t quiet = std::isnan(x) ? 0x40 : 0;
    EXPECT_EQ(float_to_bf16(x), code | quiet);  // and back
  }
}

TEST(Bf16, RoundsToTheNearerNeighbour) {
  std::mt19937_64 random(3);
  const auto expect = [](float x) {
    // Neighbours below and above in magnitude; the sum of two neighbours is exact in double.
    const uint32_t low = bits(x) >> 16 & 0x7FFF, high = low + 1;
    const double a = bf16_to_float(static_cast<bf16>(low));
    const double b = high == 0x7F80 ? 0x1p128 : static_cast<double>(bf16_to_float(static_cast<bf16>(high)));
    const double m = std::fabs(static_cast<double>(x));
    const uint32_t want = m - a < b - m ? low : m - a > b - m ? high : (low % 2 == 0 ? low : high);
    ASSERT_EQ(float_to_bf16(x), want | (std::signbit(x) ? 0x8000u : 0u)) << bits(x);
  };
  for (uint32_t code = 0; code < 0x7F80; ++code)
    for (uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
      for (uint32_t sign : {0u, 0x80000000u}) expect(std::bit_cast<float>(sign | code << 16 | low));
  for (int i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isfinite(x)) expect(x);
  }
}

TEST(Bf16, NanStaysNanWithItsSign) {
  for (uint32_t b : {0x7F800001u, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu, 0x7FC00000u}) {
    const bf16 y = float_to_bf16(std::bit_cast<float>(b));
    EXPECT_TRUE((y & 0x7FFF) > 0x7F80 && (y & 0x40)) << b;
    EXPECT_EQ(y >> 15, b >> 31);
  }
  EXPECT_EQ(float_to_bf16(INFINITY), 0x7F80);
  EXPECT_EQ(float_to_bf16(-INFINITY), 0xFF80);
}

TEST(E4m3, DecodesEveryCode) {
  for (int c = 0; c < 256; ++c)
    EXPECT_EQ(bits(e4m3_to_float(static_cast<uint8_t>(c))), tables::kE4m3[c]) << c;
}

TEST(E4m3, EncodesToTheNearestCode) {
  const std::vector<double> values = magnitudes(tables::kE4m3, 0x7F);
  for (float x : interesting_floats(values)) ASSERT_EQ(float_to_e4m3(x), nearest_code(values, x, 0x80)) << x;
  EXPECT_EQ(float_to_e4m3(kNan), 0x7F);
  EXPECT_EQ(float_to_e4m3(kNegativeNan), 0xFF);
  EXPECT_EQ(float_to_e4m3(INFINITY), 0x7E);
  EXPECT_EQ(float_to_e4m3(-INFINITY), 0xFE);
}

TEST(E8m0, DecodesEveryCode) {
  for (int c = 0; c < 256; ++c)
    EXPECT_EQ(bits(e8m0_to_float(static_cast<uint8_t>(c))), tables::kE8m0[c]) << c;
}

TEST(E8m0, RoundsUp) {
  const std::vector<double> values = magnitudes(tables::kE8m0, 255);
  for (float x : interesting_floats(values)) {
    uint32_t want = 254;
    for (uint32_t c = 255; c-- > 0;)
      if (values[c] >= static_cast<double>(x)) want = c;
    ASSERT_EQ(e8m0_round_up(x), want) << x;
  }
  EXPECT_EQ(e8m0_round_up(kNan), 0xFF);
  EXPECT_EQ(e8m0_round_up(kNegativeNan), 0xFF);
}

TEST(E8m0, Reciprocal) {
  for (int c = 0; c < 255; ++c) {
    const auto code = static_cast<uint8_t>(c);
    EXPECT_EQ(static_cast<double>(e8m0_to_float(code)) * static_cast<double>(e8m0_reciprocal(code)), 1.0);
  }
  EXPECT_TRUE(std::isnan(e8m0_reciprocal(0xFF)));
}

TEST(E2m1, DecodesEveryCode) {
  for (uint32_t c = 0; c < 16; ++c) {
    EXPECT_EQ(bits(e2m1_to_float(c)), tables::kE2m1[c]) << c;
    EXPECT_EQ(bits(e2m1_to_float(c | 0xF0)), tables::kE2m1[c]) << c;
  }
}

TEST(E2m1, EncodesToTheNearestCode) {
  const std::vector<double> values = magnitudes(tables::kE2m1, 8);
  for (float x : interesting_floats(values)) ASSERT_EQ(float_to_e2m1(x), nearest_code(values, x, 8)) << x;
  EXPECT_EQ(float_to_e2m1(kNan), 7);
  EXPECT_EQ(float_to_e2m1(kNegativeNan), 15);
  EXPECT_EQ(float_to_e2m1(-INFINITY), 15);
}

}  // namespace perigee
