// Decoding 16 bytes of a cache record at once, by the definitions of formats/cache_records.h: the same bits
// for every finite value.
#pragma once

#include <cuda_fp16.h>

#include "formats/cache_records.h"
#include "ops/cuda/fragments.cuh"

namespace perigee::cuda {

// Two e4m3 codes in fp32, exactly.
__device__ inline float2 e4m3_pair(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
  __half2 pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;"
      : "=r"(reinterpret_cast<uint32_t&>(pair))
      : "h"(static_cast<uint16_t>(codes)));
  return __half22float2(pair);
#else
  return {e4m3_to_float(static_cast<uint8_t>(codes)), e4m3_to_float(static_cast<uint8_t>(codes >> 8))};
#endif
}

// 16 e4m3 codes times `scale` as eight pairs of bf16.
__device__ inline void decode_e4m3(const uint4& raw, float scale, uint32_t (&pair)[8]) {
  const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 low = e4m3_pair(word[i] & 0xFFFFu), high = e4m3_pair(word[i] >> 16);
    pair[2 * i] = bf16_pair(low.x * scale, low.y * scale);
    pair[2 * i + 1] = bf16_pair(high.x * scale, high.y * scale);
  }
}
// The same at `out`.
__device__ inline void decode_e4m3(const uint4& raw, float scale, bf16* out) {
  uint32_t pair[8];
  decode_e4m3(raw, scale, pair);
  reinterpret_cast<uint4*>(out)[0] = {pair[0], pair[1], pair[2], pair[3]};
  reinterpret_cast<uint4*>(out)[1] = {pair[4], pair[5], pair[6], pair[7]};
}

// 8 e2m1 codes times `scale` as bf16.
__device__ inline uint4 decode_e2m1(uint32_t word, float scale) {
  uint32_t pair[4];
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    pair[b] = bf16_pair(e2m1_to_float(word >> (8 * b)) * scale, e2m1_to_float(word >> (8 * b + 4)) * scale);
  }
  return {pair[0], pair[1], pair[2], pair[3]};
}
// 32 e2m1 codes → 32 bf16: the first 16 times `first`, the others times `second`.
__device__ inline void decode_e2m1(const uint4& raw, float first, float second, bf16* out) {
  const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) reinterpret_cast<uint4*>(out)[i] = decode_e2m1(word[i], i < 2 ? first : second);
}

}  // namespace perigee::cuda
