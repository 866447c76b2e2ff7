// Weights of experts for the kernels of products.cuh: bf16 copied as they are, or MXFP4 copied packed and
// decoded, exactly, to bf16 in shared memory.
#pragma once

#include "formats/mxfp4.h"
#include "ops/cuda/products.cuh"
#include "ops/expert_addresses.h"

namespace perigee::cuda {

template <int kMatricesOfJob>
struct DenseExpert : DenseWeights<kMatricesOfJob> {
  __device__ void set(const ExpertMatrix& matrix, int which, int first_column) {
    this->w[which] = static_cast<const bf16*>(matrix.values) + first_column;
  }
};

// Eight e2m1 values to bf16, exactly: bytes of the eight magnitudes are picked by PRMT, signs are moved in.
__device__ inline void decode_e2m1(uint32_t codes, uint32_t (&out)[4]) {
  constexpr uint32_t kLow0 = 0xC0800000u, kLow1 = 0xC0804000u;    // low bytes of 0, ½, 1, 1½; 2, 3, 4, 6
  constexpr uint32_t kHigh0 = 0x3F3F3F00u, kHigh1 = 0x40404040u;  // high bytes
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t four = codes >> (16 * half), pick = four & 0x7777u;
    const uint32_t low = __byte_perm(kLow0, kLow1, pick), high = __byte_perm(kHigh0, kHigh1, pick);
    out[2 * half] = __byte_perm(low, high, 0x5140) | (four & 0x8u) << 12 | (four & 0x80u) << 24;
    out[2 * half + 1] = __byte_perm(low, high, 0x7362) | (four & 0x800u) << 4 | (four & 0x8000u) << 16;
  }
}

// 2^(code − 127) as two bf16; code 0 counts as zero.
__device__ inline uint32_t scale_pair(uint8_t code) {
  const uint32_t one = code == 0xFFu ? 0x7FC0u : uint32_t{code} << 7;
  return one | one << 16;
}

__device__ inline uint32_t multiply_pair(uint32_t a, uint32_t b) {
  uint32_t y;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(0x80008000u));  // plus −0
  return y;
}

// A stage holds kTileRows × 32 bytes of nibbles; the scales of the block's rows are brought in whole at
// first.
template <int kMatricesOfJob>
struct Mxfp4Expert {
  static constexpr int kMatrices = kMatricesOfJob;
  static constexpr bool kDecodes = true;
  static constexpr int kRowBytes = kTileK / 2, kBlocks = kTileK / kMxfp4Block;
  template <int kTileRows>
  static constexpr int stage_bytes() {
    return kTileRows * kRowBytes;
  }
  template <int kTileRows>
  static constexpr int decoded_bytes() {
    return kTileRows * kTileK * 2;
  }
  static int block_bytes(int tile_rows, int k) { return tile_rows * (k / kMxfp4Block); }

  const uint8_t* values[kMatricesOfJob] = {};  // at the block's first column
  const uint8_t* scales[kMatricesOfJob] = {};
  int64_t stride = 0;  // in values
  int outputs = 0, first_output = 0;
  uint8_t* scales_of_block = nullptr;  // shared, [tile rows][scales_of_row]
  int scales_of_row = 0;

  // `first_column` is a multiple of 32.
  __device__ void set(const ExpertMatrix& matrix, int which, int first_column) {
    values[which] = static_cast<const uint8_t*>(matrix.values) + first_column / 2;
    scales[which] = matrix.scales + first_column / kMxfp4Block;
  }

  template <int kTileRows, int kGroup>
  __device__ void begin_block(uint8_t* shared, int k) {
    scales_of_block = shared;
    scales_of_row = k / kMxfp4Block;
    for (int at = threadIdx.x; at < kTileRows * scales_of_row; at += blockDim.x) {
      const TileRow<kMatrices, kGroup> from(at / scales_of_row);
      const int64_t row = first_output + from.output;
      shared[at] = row < outputs
                       ? pick(scales, from.matrix)[row * (stride / kMxfp4Block) + at % scales_of_row]
                       : uint8_t{0};
    }
  }

  template <int kTileRows, int kThreads, int kGroup>
  __device__ void fetch(uint8_t* stage, int thread, int k, int k_end) const {
    constexpr int kPieces = kTileRows * kBlocks;  // 16 bytes: a block of 32 values
    static_assert(kPieces % kThreads == 0);
#pragma unroll
    for (int i = 0; i < kPieces / kThreads; ++i) {
      const int at = i * kThreads + thread, tile_row = at / kBlocks, block = at % kBlocks;
      const TileRow<kMatrices, kGroup> from(tile_row);
      const int64_t row = first_output + from.output;
      const int column = k + block * kMxfp4Block;
      const bool exists = row < outputs && column < k_end;
      const uint8_t* packed =
          exists ? pick(values, from.matrix) + row * (stride / 2) + column / 2 : values[0];
      copy_16(stage + tile_row * kRowBytes + block * 16, packed, exists);
    }
  }

  template <int kTileRows, int kThreads, int kGroup>
  __device__ const bf16* weights(const uint8_t* stage, bf16* decoded, int thread, int k, int k_end) const {
    constexpr int kPieces = kTileRows * kBlocks;
#pragma unroll
    for (int i = 0; i < kPieces / kThreads; ++i) {
      const int at = i * kThreads + thread, tile_row = at / kBlocks, block = at % kBlocks;
      const uint4 packed = *reinterpret_cast<const uint4*>(stage + tile_row * kRowBytes + block * 16);
      const int column = k + block * kMxfp4Block;
      const uint32_t scale =
          column < k_end ? scale_pair(scales_of_block[tile_row * scales_of_row + column / kMxfp4Block]) : 0u;
      const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        uint32_t out[4];
        decode_e2m1(words[word], out);
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) out[pair] = multiply_pair(out[pair], scale);
        *reinterpret_cast<uint4*>(decoded + tile_offset(tile_row, block * 4 + word)) =
            make_uint4(out[0], out[1], out[2], out[3]);
      }
    }
    return decoded;
  }
};

}  // namespace perigee::cuda
