// The records of the cache: how one token's MLA latent and index key lie in memory, and how fp32 values
// become them. All arithmetic is fp32 with the operations written here, so that every device makes the same
// bytes of finite values; what NaN and infinity become is each device's own affair.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "formats/mxfp4.h"
#include "formats/nvfp4.h"

namespace perigee {

enum class LatentFormat { kBf16, kFp8, kNvfp4 };
enum class IndexKeyFormat { kBf16, kFp8, kMxfp4 };

constexpr int kLatentRank = 512;  // the normed, compressed part
constexpr int kLatentRope = 64;   // k_pe, as projected
constexpr int kLatentDim = kLatentRank + kLatentRope;
constexpr int kIndexKeyDim = 128;
constexpr int kPageTokens = 64;

constexpr std::string_view latent_format_name(LatentFormat f) {
  return f == LatentFormat::kBf16 ? "bf16" : f == LatentFormat::kFp8 ? "fp8" : "nvfp4";
}
constexpr std::string_view index_key_format_name(IndexKeyFormat f) {
  return f == IndexKeyFormat::kBf16 ? "bf16" : f == IndexKeyFormat::kFp8 ? "fp8" : "mxfp4";
}
constexpr std::optional<LatentFormat> parse_latent_format(std::string_view name) {
  for (LatentFormat f : {LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kNvfp4})
    if (latent_format_name(f) == name) return f;
  return std::nullopt;
}
constexpr std::optional<IndexKeyFormat> parse_index_key_format(std::string_view name) {
  for (IndexKeyFormat f : {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kMxfp4})
    if (index_key_format_name(f) == name) return f;
  return std::nullopt;
}

// --- Latents: one contiguous record a token
// -------------------------------------------------------------------------

PERIGEE_HD constexpr int latent_bytes(LatentFormat f) {
  return f == LatentFormat::kBf16  ? 2 * kLatentDim
         : f == LatentFormat::kFp8 ? kLatentDim
                                   : kLatentRank / 2 + kLatentRope + kLatentRank / kNvfp4Block;
}

// The nvfp4 record: [0,256) e2m1 of the 512, [256,320) e4m3 of the 64, [320,352) e4m3 scales per 16 of the
// 512.
constexpr int kNvfp4RopeOffset = kLatentRank / 2;
constexpr int kNvfp4ScaleOffset = kNvfp4RopeOffset + kLatentRope;

// x[576] → record. `scale` is the layer's static fp32 scale, a positive normal number (1 for bf16, where it
// is unused); with r = 1 / scale, rounded once:
//   bf16   float_to_bf16(x)
//   fp8    float_to_e4m3(x · r)
//   nvfp4  nvfp4_quantize_block(x, r) for the 512; float_to_e4m3(x · r) for the 64
PERIGEE_HD inline void encode_latent(LatentFormat format, const float* x, float scale, uint8_t* record) {
  const float r = 1.0f / scale;
  if (format == LatentFormat::kBf16) {
    for (int i = 0; i < kLatentDim; ++i) {
      const bf16 y = float_to_bf16(x[i]);
      record[2 * i] = static_cast<uint8_t>(y);
      record[2 * i + 1] = static_cast<uint8_t>(y >> 8);
    }
  } else if (format == LatentFormat::kFp8) {
    for (int i = 0; i < kLatentDim; ++i) record[i] = float_to_e4m3(x[i] * r);
  } else {
    for (int b = 0; b < kLatentRank / kNvfp4Block; ++b)
      record[kNvfp4ScaleOffset + b] =
          nvfp4_quantize_block(x + b * kNvfp4Block, r, record + b * kNvfp4Block / 2);
    for (int i = 0; i < kLatentRope; ++i)
      record[kNvfp4RopeOffset + i] = float_to_e4m3(x[kLatentRank + i] * r);
  }
}

// One value of a record in fp32, before the rounding to bf16 that every reader applies:
//   fp8    e4m3 · scale
//   nvfp4  e2m1 · (e4m3 · scale) for the 512; e4m3 · scale for the 64
PERIGEE_HD inline float latent_value(LatentFormat format, const uint8_t* record, float scale, int i) {
  if (format == LatentFormat::kBf16)
    return bf16_to_float(static_cast<bf16>(record[2 * i] | uint32_t{record[2 * i + 1]} << 8));
  if (format == LatentFormat::kFp8) return e4m3_to_float(record[i]) * scale;
  if (i >= kLatentRank) return e4m3_to_float(record[kNvfp4RopeOffset + i - kLatentRank]) * scale;
  return nvfp4_value(record, record[kNvfp4ScaleOffset + i / kNvfp4Block], scale, i);
}

// record → out[576] in bf16.
PERIGEE_HD inline void decode_latent(LatentFormat format, const uint8_t* record, float scale, bf16* out) {
  for (int i = 0; i < kLatentDim; ++i) out[i] = float_to_bf16(latent_value(format, record, scale, i));
}

// --- Index keys: a page of 64 tokens holds all values, then all scales
// ----------------------------------------------

PERIGEE_HD constexpr int index_key_value_bytes(IndexKeyFormat f) {
  return f == IndexKeyFormat::kBf16  ? 2 * kIndexKeyDim
         : f == IndexKeyFormat::kFp8 ? kIndexKeyDim
                                     : kIndexKeyDim / 2;
}
PERIGEE_HD constexpr int index_key_scale_bytes(IndexKeyFormat f) {
  return f == IndexKeyFormat::kBf16 ? 0 : 4;  // one fp32, or four e8m0
}
PERIGEE_HD constexpr int index_key_bytes(IndexKeyFormat f) {
  return index_key_value_bytes(f) + index_key_scale_bytes(f);
}
PERIGEE_HD constexpr int index_page_bytes(IndexKeyFormat f) { return kPageTokens * index_key_bytes(f); }
PERIGEE_HD constexpr int index_value_offset(IndexKeyFormat f, int token_in_page) {
  return token_in_page * index_key_value_bytes(f);
}
PERIGEE_HD constexpr int index_scale_offset(IndexKeyFormat f, int token_in_page) {
  return kPageTokens * index_key_value_bytes(f) + token_in_page * index_key_scale_bytes(f);
}

static_assert(latent_bytes(LatentFormat::kBf16) == 1152 && latent_bytes(LatentFormat::kFp8) == 576 &&
              latent_bytes(LatentFormat::kNvfp4) == 352);
static_assert(index_key_bytes(IndexKeyFormat::kBf16) == 256 && index_key_bytes(IndexKeyFormat::kFp8) == 132 &&
              index_key_bytes(IndexKeyFormat::kMxfp4) == 68);

// The fp8 scale of a vector: amax / 448, one division; 0 when amax is below 2^-100, so that the scale is
// never subnormal.
PERIGEE_HD inline float index_fp8_scale(const float* x) {
  const float amax = max_magnitude(x, kIndexKeyDim);
  return amax < 0x1p-100f ? 0.0f : amax / 448.0f;
}

// x[128] → values and scale(s).
//   bf16   float_to_bf16(x), no scale
//   fp8    s = index_fp8_scale(x); float_to_e4m3(x / s), one division a value; s = 0: all codes 0
//   mxfp4  mxfp4_quantize_block per 32
// The same serves index queries, whose scale is then folded into the head weight.
PERIGEE_HD inline void encode_index_key(IndexKeyFormat format, const float* x, uint8_t* values,
                                        uint8_t* scales) {
  if (format == IndexKeyFormat::kBf16) {
    for (int i = 0; i < kIndexKeyDim; ++i) {
      const bf16 y = float_to_bf16(x[i]);
      values[2 * i] = static_cast<uint8_t>(y);
      values[2 * i + 1] = static_cast<uint8_t>(y >> 8);
    }
  } else if (format == IndexKeyFormat::kFp8) {
    const float s = index_fp8_scale(x);
    for (int i = 0; i < kIndexKeyDim; ++i) values[i] = s == 0.0f ? uint8_t{0} : float_to_e4m3(x[i] / s);
    const uint32_t bits = std::bit_cast<uint32_t>(s);
    for (int i = 0; i < 4; ++i) scales[i] = static_cast<uint8_t>(bits >> (8 * i));
  } else {
    for (int b = 0; b < kIndexKeyDim / kMxfp4Block; ++b)
      scales[b] = mxfp4_quantize_block(x + b * kMxfp4Block, values + b * kMxfp4Block / 2);
  }
}

PERIGEE_HD inline float read_fp32_scale(const uint8_t* scales) {
  return std::bit_cast<float>(scales[0] | uint32_t{scales[1]} << 8 | uint32_t{scales[2]} << 16 |
                              uint32_t{scales[3]} << 24);
}

// → out[128] in bf16 and the fp32 scale that the score is multiplied with. fp8: the e4m3 values, exact in
// bf16, and the stored scale. bf16 and mxfp4: the values themselves (e2m1 · 2^e is exact in bf16) and 1.
PERIGEE_HD inline float decode_index_key(IndexKeyFormat format, const uint8_t* values, const uint8_t* scales,
                                         bf16* out) {
  if (format == IndexKeyFormat::kBf16) {
    for (int i = 0; i < kIndexKeyDim; ++i)
      out[i] = static_cast<bf16>(values[2 * i] | uint32_t{values[2 * i + 1]} << 8);
    return 1.0f;
  }
  if (format == IndexKeyFormat::kFp8) {
    for (int i = 0; i < kIndexKeyDim; ++i) out[i] = float_to_bf16(e4m3_to_float(values[i]));
    return read_fp32_scale(scales);
  }
  for (int i = 0; i < kIndexKeyDim; ++i)
    out[i] = float_to_bf16(e2m1_to_float(mxfp4_nibble(values, i)) * e8m0_to_float(scales[i / kMxfp4Block]));
  return 1.0f;
}

}  // namespace perigee
