// Block formats and cache records: golden bytes from make_tables.py, and the properties that readers rely on.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "base/error.h"
#include "base/thread_pool.h"
#include "codec_search.h"
#include "formats/cache_records.h"
#include "tables.h"

namespace perigee {

namespace {

// As inputs() of make_tables.py.
std::vector<float> record_inputs(uint32_t seed, int count) {
  std::vector<float> out;
  uint32_t state = seed;
  for (int i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    const int power = i / 16 * 5 % 13 - 9;
    const float x = std::ldexp(static_cast<float>(static_cast<int32_t>(state >> 8) - (1 << 23)), power - 20);
    out.push_back(seed % 3 == 2 && i >= 32 && i < 64 ? 0.0f : x);
  }
  return out;
}

std::string hex(const std::vector<uint8_t>& bytes) {
  std::string out;
  for (uint8_t b : bytes) out += fmt::format("{:02x}", b);
  return out;
}

std::vector<uint8_t> bytes_of(const std::string& hex) {
  std::vector<uint8_t> out;
  for (size_t i = 0; i < hex.size(); i += 2)
    out.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return out;
}

std::vector<uint8_t> latent(LatentFormat f, const std::vector<float>& x, float scale) {
  std::vector<uint8_t> out(latent_bytes(f));
  encode_latent(f, x.data(), scale, out.data());
  return out;
}

std::string hex(const std::vector<bf16>& values) {
  std::string out;
  for (bf16 v : values) out += fmt::format("{:02x}{:02x}", v & 255, v >> 8);
  return out;
}

std::vector<uint8_t> key(IndexKeyFormat f, const std::vector<float>& x) {
  std::vector<uint8_t> out(index_key_bytes(f));
  encode_index_key(f, x.data(), out.data(), out.data() + index_key_value_bytes(f));
  return out;
}

}  // namespace

TEST(Records, Sizes) {
  EXPECT_EQ(latent_bytes(LatentFormat::kBf16), 1152);
  EXPECT_EQ(latent_bytes(LatentFormat::kFp8), 576);
  EXPECT_EQ(latent_bytes(LatentFormat::kNvfp4), 352);
  EXPECT_EQ(index_key_bytes(IndexKeyFormat::kBf16), 256);
  EXPECT_EQ(index_key_bytes(IndexKeyFormat::kFp8), 132);
  EXPECT_EQ(index_key_bytes(IndexKeyFormat::kMxfp4), 68);
  // The released model: 24 layers.
  EXPECT_EQ(24 * (latent_bytes(LatentFormat::kFp8) + index_key_bytes(IndexKeyFormat::kFp8)), 16992);
  EXPECT_EQ(24 * (latent_bytes(LatentFormat::kNvfp4) + index_key_bytes(IndexKeyFormat::kFp8)), 11616);
  EXPECT_EQ(24 * (latent_bytes(LatentFormat::kNvfp4) + index_key_bytes(IndexKeyFormat::kMxfp4)), 10080);
}

TEST(Records, PageHoldsValuesThenScales) {
  for (IndexKeyFormat f : {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kMxfp4}) {
    std::vector<int> used(index_page_bytes(f));
    for (int t = 0; t < kPageTokens; ++t) {
      for (int i = 0; i < index_key_value_bytes(f); ++i) ++used[index_value_offset(f, t) + i];
      for (int i = 0; i < index_key_scale_bytes(f); ++i) ++used[index_scale_offset(f, t) + i];
    }
    for (int u : used) ASSERT_EQ(u, 1);
  }
  EXPECT_EQ(index_scale_offset(IndexKeyFormat::kFp8, 0), 8192);
  EXPECT_EQ(index_page_bytes(IndexKeyFormat::kFp8), 8192 + 256);
}

TEST(Records, Names) {
  for (LatentFormat f : {LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kNvfp4})
    EXPECT_EQ(parse_latent_format(latent_format_name(f)), f);
  for (IndexKeyFormat f : {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kMxfp4})
    EXPECT_EQ(parse_index_key_format(index_key_format_name(f)), f);
  EXPECT_EQ(parse_latent_format("int8"), std::nullopt);
  EXPECT_EQ(parse_index_key_format("nvfp4"), std::nullopt);
}

TEST(Records, GoldenBytes) {
  for (const tables::Golden& g : tables::kGolden) {
    const std::vector<float> x = record_inputs(g.seed, kLatentDim), k = record_inputs(g.seed, kIndexKeyDim);
    EXPECT_EQ(hex(latent(LatentFormat::kBf16, x, g.latent_scale)), g.latent_bf16) << g.seed;
    EXPECT_EQ(hex(latent(LatentFormat::kFp8, x, g.latent_scale)), g.latent_fp8) << g.seed;
    EXPECT_EQ(hex(latent(LatentFormat::kNvfp4, x, g.latent_scale)), g.latent_nvfp4) << g.seed;
    EXPECT_EQ(hex(key(IndexKeyFormat::kBf16, k)), g.key_bf16) << g.seed;
    EXPECT_EQ(hex(key(IndexKeyFormat::kFp8, k)), g.key_fp8) << g.seed;
    EXPECT_EQ(hex(key(IndexKeyFormat::kMxfp4, k)), g.key_mxfp4) << g.seed;
  }
}

TEST(Records, GoldenReads) {
  for (const tables::Golden& g : tables::kGolden) {
    const std::tuple<LatentFormat, const char*, const char*> latents[] = {
        {LatentFormat::kBf16, g.latent_bf16, g.latent_bf16},
        {LatentFormat::kFp8, g.latent_fp8, g.read_latent_fp8},
        {LatentFormat::kNvfp4, g.latent_nvfp4, g.read_latent_nvfp4}};
    for (const auto& [format, record, want] : latents) {
      std::vector<bf16> out(kLatentDim);
      decode_latent(format, bytes_of(record).data(), g.latent_scale, out.data());
      EXPECT_EQ(hex(out), want) << g.seed << " " << latent_format_name(format);
    }
    const std::tuple<IndexKeyFormat, const char*, const char*> keys[] = {
        {IndexKeyFormat::kBf16, g.key_bf16, g.key_bf16},
        {IndexKeyFormat::kFp8, g.key_fp8, g.read_key_fp8},
        {IndexKeyFormat::kMxfp4, g.key_mxfp4, g.read_key_mxfp4}};
    for (const auto& [format, record, want] : keys) {
      std::vector<bf16> out(kIndexKeyDim);
      const std::vector<uint8_t> bytes = bytes_of(record);
      const uint8_t* scales = bytes.data() + index_key_value_bytes(format);
      const float scale = decode_index_key(format, bytes.data(), scales, out.data());
      EXPECT_EQ(hex(out), want) << g.seed << " " << index_key_format_name(format);
      float stored = 1.0f;
      if (format == IndexKeyFormat::kFp8) std::memcpy(&stored, scales, 4);
      EXPECT_EQ(scale, stored);
    }
  }
}

TEST(Records, SameBytesWithFlushedSubnormals) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 300; ++round) {
    std::vector<float> x(kLatentDim);
    const int low = round % 3 == 0 ? -149 : -120;
    for (float& v : x)
      v = std::ldexp(static_cast<float>(random() % 2001) - 1000,
                     low - 10 + static_cast<int>(random() % (round % 60 + 1)));
    std::vector<std::vector<uint8_t>> plain, flushed;
    const auto all = [&](std::vector<std::vector<uint8_t>>& out) {
      for (LatentFormat f : {LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kNvfp4})
        out.push_back(latent(f, x, 0.25f));
      for (IndexKeyFormat f : {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kMxfp4})
        out.push_back(key(f, x));
    };
    all(plain);
    {
      FlushSubnormals mode;
      all(flushed);
    }
    ASSERT_EQ(plain, flushed) << round;
  }
}

TEST(Records, ZeroAndNan) {
  const std::vector<float> zero(kLatentDim, 0.0f);
  for (LatentFormat f : {LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kNvfp4})
    EXPECT_EQ(latent(f, zero, 1.0f), std::vector<uint8_t>(latent_bytes(f), 0));
  std::vector<bf16> out(kLatentDim);
  for (IndexKeyFormat f : {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kMxfp4}) {
    std::vector<uint8_t> record = key(f, zero);
    EXPECT_EQ(record, std::vector<uint8_t>(index_key_bytes(f), 0));
    decode_index_key(f, record.data(), record.data() + index_key_value_bytes(f), out.data());
    for (int i = 0; i < kIndexKeyDim; ++i) EXPECT_EQ(out[i], 0);
    // A NaN among the values reaches the reader.
    std::vector<float> bad(kLatentDim, 1.0f);
    bad[5] = NAN;
    record = key(f, bad);
    const float s = decode_index_key(f, record.data(), record.data() + index_key_value_bytes(f), out.data());
    EXPECT_TRUE(std::isnan(bf16_to_float(out[5]) * s));
  }
}

TEST(Records, DecodingIsWithinHalfAStep) {
  for (uint32_t seed = 1; seed < 40; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<float> x(kLatentDim);
    for (float& v : x) v = static_cast<float>(static_cast<double>(random() >> 11) * 0x1p-51 - 2.0);
    for (LatentFormat f : {LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kNvfp4}) {
      const auto record = latent(f, x, 0.01f);
      std::vector<bf16> out(kLatentDim);
      decode_latent(f, record.data(), 0.01f, out.data());
      double error = 0, norm = 0;
      for (int i = 0; i < kLatentDim; ++i) {
        EXPECT_EQ(out[i], float_to_bf16(latent_value(f, record.data(), 0.01f, i)));
        const double d = bf16_to_float(out[i]) - x[i];
        error += d * d;
        norm += static_cast<double>(x[i]) * x[i];
      }
      EXPECT_LT(std::sqrt(error / norm), f == LatentFormat::kBf16  ? 0.003
                                         : f == LatentFormat::kFp8 ? 0.04
                                                                   : 0.15);
    }
    for (IndexKeyFormat f : {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kMxfp4}) {
      const auto record = key(f, x);
      std::vector<bf16> out(kIndexKeyDim);
      const float s =
          decode_index_key(f, record.data(), record.data() + index_key_value_bytes(f), out.data());
      double error = 0, norm = 0;
      for (int i = 0; i < kIndexKeyDim; ++i) {
        const double d = static_cast<double>(bf16_to_float(out[i])) * s - x[i];
        error += d * d;
        norm += static_cast<double>(x[i]) * x[i];
      }
      EXPECT_LT(std::sqrt(error / norm), f == IndexKeyFormat::kBf16  ? 0.003
                                         : f == IndexKeyFormat::kFp8 ? 0.04
                                                                     : 0.2);
    }
  }
}

// A product of two fp32 numbers is exact in double, so that one rounding to fp32 is the whole definition.
TEST(Mxfp4, EveryCodeUnderEveryScale) {
  for (int scale = 0; scale < 256; ++scale) {
    for (uint32_t code = 0; code < 16; ++code) {
      const auto packed = static_cast<uint8_t>(code | (15 - code) << 4);
      const float value = std::bit_cast<float>(tables::kE2m1[code]);
      const float want = static_cast<float>(double{value} * std::bit_cast<float>(tables::kE8m0[scale]));
      const float got = mxfp4_value(&packed, static_cast<uint8_t>(scale), 0);
      if (scale == 255)
        EXPECT_TRUE(std::isnan(got));
      else
        EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want)) << code << " " << scale;
      if (scale < 254) {
        const float second = std::bit_cast<float>(tables::kE2m1[15 - code]);
        EXPECT_EQ(mxfp4_value(&packed, static_cast<uint8_t>(scale), 1), std::ldexp(second, scale - 127));
      }
    }
  }
}

TEST(Nvfp4, EveryCodeUnderEveryScale) {
  for (float global : {1.0f, 0.37f, 0x1.8p-20f, 12.5f}) {
    for (int scale = 0; scale < 256; ++scale) {
      if (scale % 128 == 127) continue;  // NaN
      for (uint32_t code = 0; code < 16; ++code) {
        const auto packed = static_cast<uint8_t>(code << 4);
        const float block = static_cast<float>(double{std::bit_cast<float>(tables::kE4m3[scale])} * global);
        const float want = static_cast<float>(double{std::bit_cast<float>(tables::kE2m1[code])} * block);
        const float got = nvfp4_value(&packed, static_cast<uint8_t>(scale), global, 1);
        EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want))
            << code << " " << scale << " " << global;
      }
    }
  }
}

TEST(Mxfp4, NibbleOrder) {
  std::vector<float> x(kMxfp4Block, 0.0f);
  x[0] = 0.5f;
  x[1] = -6.0f;
  x[30] = 3.0f;
  uint8_t packed[16];
  const uint8_t scale = mxfp4_quantize_block(x.data(), packed);
  EXPECT_EQ(scale, 127);
  EXPECT_EQ(packed[0], 0x1 | 0xF << 4);
  EXPECT_EQ(packed[15], 0x5);
  EXPECT_EQ(mxfp4_value(packed, scale, 1), -6.0f);
}

TEST(Mxfp4, NothingSaturatesAndNoSmallerScaleWould) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 20000; ++round) {
    std::vector<float> x(kMxfp4Block, 0.0f);
    const int shift = static_cast<int>(random() % 200) - 90;
    float amax = std::ldexp(1.0f + static_cast<float>(random() >> 41) * 0x1p-23f, shift);
    if (round % 4 == 0) amax = std::ldexp(1.5f, shift);
    if (round % 4 == 1) amax = std::nextafterf(std::ldexp(1.5f, shift), INFINITY);
    x[random() % 32] = random() % 2 ? amax : -amax;
    uint8_t packed[16];
    const uint8_t scale = mxfp4_quantize_block(x.data(), packed);
    ASSERT_GE(6.0 * e8m0_to_float(scale), amax);
    ASSERT_LT(6.0 * e8m0_to_float(static_cast<uint8_t>(scale - 1)), amax);
    const uint8_t ocp = mxfp4_quantize_block_ocp(x.data(), packed);
    ASSERT_EQ(e8m0_to_float(ocp), std::ldexp(1.0, std::ilogb(amax) - 2));
  }
}

TEST(Mxfp4, QuantisingWhatIsQuantisedChangesNothing) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 2000; ++round) {
    uint8_t packed[16], again[16];
    for (uint8_t& b : packed) b = static_cast<uint8_t>(random());
    packed[3] = 0x77;  // the largest magnitude occurs, so that the scale is recovered
    const auto scale = static_cast<uint8_t>(60 + random() % 140);
    float x[kMxfp4Block];
    for (int i = 0; i < kMxfp4Block; ++i) x[i] = mxfp4_value(packed, scale, i);
    ASSERT_EQ(mxfp4_quantize_block(x, again), scale);
    ASSERT_EQ(std::memcmp(packed, again, sizeof packed), 0);
    ASSERT_EQ(mxfp4_quantize_block_ocp(x, again), scale);
    ASSERT_EQ(std::memcmp(packed, again, sizeof packed), 0);
  }
}

}  // namespace perigee
