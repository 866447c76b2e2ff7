// What the codecs of src/formats make of input i, as plain bytes: compiled once by the host's compiler and
// once by nvcc, and compared bit by bit.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/cache_records.h"

namespace perigee {

// Every field is bits. Over i in [0, 2^20) each code of each element format is decoded and encoded again, and
// fp32 values of every sign, exponent and leading 11 mantissa bits are encoded, NaNs and infinities included.
struct ScalarResult {
  uint32_t bf16_value, e4m3_value, e2m1_value, e8m0_value, e8m0_inverse, rounded;
  uint32_t bf16_again, e4m3_again, e2m1_again, e8m0_again;
  uint32_t bf16_code, e4m3_code, e2m1_code, e8m0_code;
  bool operator==(const ScalarResult&) const = default;
};
constexpr int kScalarInputs = 1 << 20;

PERIGEE_HD inline ScalarResult scalar_battery(uint32_t i) {
  const float x = std::bit_cast<float>(i << 12 | (i * 2654435761u) >> 20);
  const float from_bf16 = bf16_to_float(static_cast<bf16>(i));
  const float from_e4m3 = e4m3_to_float(static_cast<uint8_t>(i));
  const float from_e2m1 = e2m1_to_float(i);
  const float from_e8m0 = e8m0_to_float(static_cast<uint8_t>(i));
  return {.bf16_value = std::bit_cast<uint32_t>(from_bf16),
          .e4m3_value = std::bit_cast<uint32_t>(from_e4m3),
          .e2m1_value = std::bit_cast<uint32_t>(from_e2m1),
          .e8m0_value = std::bit_cast<uint32_t>(from_e8m0),
          .e8m0_inverse = std::bit_cast<uint32_t>(e8m0_reciprocal(static_cast<uint8_t>(i))),
          .rounded = std::bit_cast<uint32_t>(round_to_bf16(x)),
          .bf16_again = float_to_bf16(from_bf16),
          .e4m3_again = float_to_e4m3(from_e4m3),
          .e2m1_again = float_to_e2m1(from_e2m1),
          .e8m0_again = e8m0_round_up(from_e8m0),
          .bf16_code = float_to_bf16(x),
          .e4m3_code = float_to_e4m3(x),
          .e2m1_code = float_to_e2m1(x),
          .e8m0_code = e8m0_round_up(x)};
}

// Block i of mxfp4 and nvfp4: for i < 65536 the byte i % 256 under the scale i / 256 is decoded and the two
// values' block encoded again; the records are of finite values whose exponents follow from i.
struct BlockResult {
  uint32_t mxfp4_value[2], nvfp4_value[2];
  uint8_t mxfp4[kMxfp4Block / 2], mxfp4_ocp[kMxfp4Block / 2], nvfp4[kNvfp4Block / 2];
  uint8_t mxfp4_scale, mxfp4_ocp_scale, nvfp4_scale;
  bool operator==(const BlockResult&) const = default;
};
constexpr int kBlockInputs = 1 << 16;

PERIGEE_HD inline BlockResult block_battery(uint32_t i) {
  BlockResult r{};
  const uint8_t byte = static_cast<uint8_t>(i), scale = static_cast<uint8_t>(i >> 8);
  float mx[kMxfp4Block], nv[kNvfp4Block];
  for (int k = 0; k < kMxfp4Block; ++k) mx[k] = mxfp4_value(&byte, scale == 0xFF ? uint8_t{0} : scale, k % 2);
  for (int k = 0; k < kNvfp4Block; ++k) {
    nv[k] = nvfp4_value(&byte, scale % 128 == 127 ? uint8_t{0} : scale, 0.37f, k % 2);
  }
  for (int k = 0; k < 2; ++k) {
    r.mxfp4_value[k] = std::bit_cast<uint32_t>(mx[k]);
    r.nvfp4_value[k] = std::bit_cast<uint32_t>(nv[k]);
  }
  r.mxfp4_scale = mxfp4_quantize_block(mx, r.mxfp4);
  r.mxfp4_ocp_scale = mxfp4_quantize_block_ocp(mx, r.mxfp4_ocp);
  r.nvfp4_scale = nvfp4_quantize_block(nv, 1.0f / 0.37f, r.nvfp4);
  return r;
}

struct RecordResult {
  uint8_t latent[3][2 * kLatentDim];
  bf16 latent_value[3][kLatentDim];
  uint8_t key[3][2 * kIndexKeyDim], key_scale[3][4];
  bf16 key_value[3][kIndexKeyDim];
  uint32_t key_score_scale[3];
  bool operator==(const RecordResult&) const = default;
};
constexpr int kRecordInputs = 2048;

// Finite, of either sign; exponents spread over 2^±8 around one that follows from i.
PERIGEE_HD inline float record_value(uint32_t i, uint32_t k) {
  uint32_t h = (i * 1024u + k) * 2654435761u;
  h = (h ^ h >> 15) * 2246822519u;
  h ^= h >> 13;
  const uint32_t exponent = 127u + i % 64u - 32u + (h >> 23 & 15u) - 8u;
  return std::bit_cast<float>((h & 0x807FFFFFu) | exponent << 23);
}

PERIGEE_HD inline void record_battery(uint32_t i, RecordResult& r) {
  float x[kLatentDim];
  for (uint32_t k = 0; k < kLatentDim; ++k) x[k] = record_value(i, k);
  const float scale = 0.01f * static_cast<float>(1 + i % 100);
  for (int f = 0; f < 3; ++f) {
    encode_latent(static_cast<LatentFormat>(f), x, scale, r.latent[f]);
    decode_latent(static_cast<LatentFormat>(f), r.latent[f], scale, r.latent_value[f]);
    encode_index_key(static_cast<IndexKeyFormat>(f), x, r.key[f], r.key_scale[f]);
    r.key_score_scale[f] = std::bit_cast<uint32_t>(
        decode_index_key(static_cast<IndexKeyFormat>(f), r.key[f], r.key_scale[f], r.key_value[f]));
  }
}

// The batteries and the CUDA identities' exp, run on the device.
std::vector<ScalarResult> scalar_battery_on_device();
std::vector<BlockResult> block_battery_on_device();
std::vector<RecordResult> record_battery_on_device();
std::vector<uint32_t> exp_on_device();  // of exp_input(i), i in [0, kExpInputs): bits

// Every sign, exponent and leading 14 mantissa bits.
constexpr int kExpInputs = 1 << 23;
PERIGEE_HD inline float exp_input(uint32_t i) {
  return std::bit_cast<float>(i << 9 | (i * 2654435761u) >> 23);
}

}  // namespace perigee
