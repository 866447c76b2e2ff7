// Cache records in vectors: the values of formats/cache_records.h, code by code, through tables of sixteen
// bytes.
#pragma once

#include "formats/cache_records.h"
#include "ops/cpu/fast/simd.h"

namespace perigee::cpu::PERIGEE_ISA {

PERIGEE_SIMD __m256i table(char a, char b, char c, char d, char e, char f, char g, char h, char i, char j,
                           char k, char l, char m, char n, char o, char p) {
  return _mm256_setr_epi8(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, a, b, c, d, e, f, g, h, i, j, k, l,
                          m, n, o, p);
}
PERIGEE_SIMD __m256i load_codes(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// The upper and lower bytes of 32 bf16 values, in order.
PERIGEE_SIMD void store_bytes(bf16* out, __m256i upper, __m256i lower) {
  const __m256i a = _mm256_unpacklo_epi8(lower, upper), b = _mm256_unpackhi_epi8(lower, upper);
  auto* v = reinterpret_cast<__m256i*>(out);
  _mm256_storeu_si256(v, _mm256_permute2x128_si256(a, b, 0x20));
  _mm256_storeu_si256(v + 1, _mm256_permute2x128_si256(a, b, 0x31));
}

// 32 e4m3 codes as bf16, exact. With e the three upper exponent bits and n the low nibble, a bf16 is 3C + e
// above n·16 where e > 0; below that come the eight subnormals and the lowest normals, from tables by n.
PERIGEE_SIMD void decode_e4m3(const uint8_t* codes, bf16* out) {
  const __m256i c = load_codes(codes), low4 = _mm256_set1_epi8(0x0F);
  const __m256i nibble = _mm256_and_si256(c, low4);
  const __m256i top = _mm256_and_si256(_mm256_srli_epi16(c, 4), low4);  // sign and e
  const __m256i upper_of_top =
      table(0, 0x3D, 0x3E, 0x3F, 0x40, 0x41, 0x42, 0x43, static_cast<char>(0x80), static_cast<char>(0xBD),
            static_cast<char>(0xBE), static_cast<char>(0xBF), static_cast<char>(0xC0),
            static_cast<char>(0xC1), static_cast<char>(0xC2), static_cast<char>(0xC3));
  const __m256i is_low_of_top = table(-1, 0, 0, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0);
  // n · 2^-9 for n < 8, (1 + (n − 8)/8) · 2^-6 above: the bf16 of both is n · 2^-9.
  const __m256i upper_of_low =
      table(0, 0x3B, 0x3B, 0x3B, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C);
  const __m256i lower_of_low = table(
      0, 0x00, static_cast<char>(0x80), static_cast<char>(0xC0), 0x00, 0x20, 0x40, 0x60,
      static_cast<char>(0x80), static_cast<char>(0x90), static_cast<char>(0xA0), static_cast<char>(0xB0),
      static_cast<char>(0xC0), static_cast<char>(0xD0), static_cast<char>(0xE0), static_cast<char>(0xF0));
  const __m256i is_low = _mm256_shuffle_epi8(is_low_of_top, top);
  __m256i upper = _mm256_or_si256(_mm256_shuffle_epi8(upper_of_top, top),
                                  _mm256_and_si256(is_low, _mm256_shuffle_epi8(upper_of_low, nibble)));
  __m256i lower =
      _mm256_blendv_epi8(_mm256_slli_epi16(nibble, 4), _mm256_shuffle_epi8(lower_of_low, nibble), is_low);
  const __m256i magnitude = _mm256_and_si256(c, _mm256_set1_epi8(0x7F));
  const __m256i is_nan = _mm256_cmpeq_epi8(magnitude, _mm256_set1_epi8(0x7F));
  upper = _mm256_or_si256(upper, _mm256_and_si256(is_nan, _mm256_set1_epi8(0x7F)));
  lower = _mm256_blendv_epi8(lower, _mm256_set1_epi8(static_cast<char>(0xC0)), is_nan);
  store_bytes(out, upper, lower);
}

// 32 e2m1 codes (16 bytes, low nibble first) as bf16, exact.
PERIGEE_SIMD void decode_e2m1(const uint8_t* packed, bf16* out) {
  const __m128i p = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed));
  const __m128i low4 = _mm_set1_epi8(0x0F);
  const __m128i even = _mm_and_si128(p, low4), odd = _mm_and_si128(_mm_srli_epi16(p, 4), low4);
  const __m256i code = _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
  const __m256i upper =
      table(0, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, static_cast<char>(0x80), static_cast<char>(0xBF),
            static_cast<char>(0xBF), static_cast<char>(0xBF), static_cast<char>(0xC0),
            static_cast<char>(0xC0), static_cast<char>(0xC0), static_cast<char>(0xC0));
  const __m256i lower =
      table(0, 0x00, static_cast<char>(0x80), static_cast<char>(0xC0), 0x00, 0x40, static_cast<char>(0x80),
            static_cast<char>(0xC0), 0, 0x00, static_cast<char>(0x80), static_cast<char>(0xC0), 0x00, 0x40,
            static_cast<char>(0x80), static_cast<char>(0xC0));
  store_bytes(out, _mm256_shuffle_epi8(upper, code), _mm256_shuffle_epi8(lower, code));
}

// One index key → bf16; returns its scale, as decode_index_key.
PERIGEE_SIMD float index_key_values(IndexKeyFormat format, const uint8_t* values, const uint8_t* scales,
                                    bf16* out) {
  if (format == IndexKeyFormat::kBf16) {
    __builtin_memcpy(out, values, kIndexKeyDim * sizeof(bf16));
    return 1.0f;
  }
  if (format == IndexKeyFormat::kFp8) {
    for (int i = 0; i < kIndexKeyDim; i += 32) decode_e4m3(values + i, out + i);
    float scale;
    __builtin_memcpy(&scale, scales, sizeof scale);
    return scale;
  }
  for (int b = 0; b < kIndexKeyDim / kMxfp4Block; ++b) {
    bf16* block = out + b * kMxfp4Block;
    decode_e2m1(values + b * kMxfp4Block / 2, block);
    // The power of two as e8m0_to_float reads it; code 0 is a subnormal, which counts as zero.
    const uint32_t code = scales[b], bits = code == 0xFF ? 0x7FC00000u : code << 23;
    const F32x16 scale = from_bits(splat_bits(bits));
    for (int i = 0; i < kMxfp4Block; i += 16) store_bf16(block + i, mul(load_bf16(block + i), scale));
  }
  return 1.0f;
}

// One latent → bf16, as decode_latent.
PERIGEE_SIMD void latent_values(LatentFormat format, const uint8_t* record, float scale, bf16* out) {
  const F32x16 by_scale = splat(scale);
  if (format == LatentFormat::kBf16) {
    __builtin_memcpy(out, record, kLatentDim * sizeof(bf16));
  } else if (format == LatentFormat::kFp8) {
    for (int i = 0; i < kLatentDim; i += 32) {
      decode_e4m3(record + i, out + i);
      for (int j = i; j < i + 32; j += 16) store_bf16(out + j, mul(load_bf16(out + j), by_scale));
    }
  } else {
    bf16 block_scale[kLatentRank / kNvfp4Block];
    decode_e4m3(record + kNvfp4ScaleOffset, block_scale);
    for (int i = 0; i < kLatentRank; i += 32) {
      decode_e2m1(record + i / 2, out + i);
      for (int j = i; j < i + 32; j += kNvfp4Block) {
        const F32x16 e4m3 = from_bits(splat_bits(uint32_t{block_scale[j / kNvfp4Block]} << 16));
        store_bf16(out + j, mul(load_bf16(out + j), mul(e4m3, by_scale)));
      }
    }
    for (int i = 0; i < kLatentRope; i += 32) {
      bf16* rope = out + kLatentRank + i;
      decode_e4m3(record + kNvfp4RopeOffset + i, rope);
      for (int j = 0; j < 32; j += 16) store_bf16(rope + j, mul(load_bf16(rope + j), by_scale));
    }
  }
}

}  // namespace perigee::cpu::PERIGEE_ISA
