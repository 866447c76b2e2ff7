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

// A stage holds kTileRows × 32 bytes of nibbles, then a 4-byte word a row with the scales of its two blocks.
template <int kMatricesOfJob>
struct Mxfp4Expert {
  static constexpr int kMatrices = kMatricesOfJob;
  static constexpr bool kDecodes = true;
  static constexpr int kRowBytes = kTileK / 2, kBlocks = kTileK / kMxfp4Block;
  template <int kTileRows>
  static constexpr int stage_bytes() {
    return kTileRows * (kRowBytes + 4);
  }
  template <int kTileRows>
  static constexpr int decoded_bytes() {
    return kTileRows * kTileK * 2;
  }

  const uint8_t* values[kMatricesOfJob] = {};  // at the block's first column
  const uint8_t* scales[kMatricesOfJob] = {};
  int64_t stride = 0;  // in values
  int outputs = 0, first_output = 0;

  // `first_column` is a multiple of 32.
  __device__ void set(const ExpertMatrix& matrix, int which, int first_column) {
    values[which] = static_cast<const uint8_t*>(matrix.values) + first_column / 2;
    scales[which] = matrix.scales + first_column / kMxfp4Block;
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
      const uint8_t* packed = exists ? pick(values, from.matrix) + row * (stride / 2) + column / 2 : values[0];
      copy_piece(reinterpret_cast<bf16*>(stage + tile_row * kRowBytes + block * 16),
                 reinterpret_cast<const bf16*>(packed), exists);
      // A scale is one byte, which no asynchronous copy can be: it is in place before the next barrier all
      // the same.
      stage[kTileRows * kRowBytes + tile_row * 4 + block] =
          exists ? pick(scales, from.matrix)[row * (stride / kMxfp4Block) + column / kMxfp4Block] : uint8_t{0};
    }
  }

  template <int kTileRows, int kThreads, int kGroup>
  __device__ const bf16* weights(const uint8_t* stage, bf16* decoded, int thread, int, int) const {
    constexpr int kPieces = kTileRows * kBlocks;
#pragma unroll
    for (int i = 0; i < kPieces / kThreads; ++i) {
      const int at = i * kThreads + thread, tile_row = at / kBlocks, block = at % kBlocks;
      const uint4 packed = *reinterpret_cast<const uint4*>(stage + tile_row * kRowBytes + block * 16);
      const uint8_t code = stage[kTileRows * kRowBytes + tile_row * 4 + block];
      const float scale = code == 0 ? 0.0f : e8m0_to_float(code);
      const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        uint32_t out[4];
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          const uint32_t byte = words[word] >> (8 * pair);
          const float low = e2m1_to_float(byte & 15u) * scale, high = e2m1_to_float(byte >> 4 & 15u) * scale;
          out[pair] = __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xFFFF0000u);  // exact in bf16
        }
        *reinterpret_cast<uint4*>(decoded + tile_offset(tile_row, block * 4 + word)) =
            make_uint4(out[0], out[1], out[2], out[3]);
      }
    }
    return decoded;
  }
};

}  // namespace perigee::cuda
