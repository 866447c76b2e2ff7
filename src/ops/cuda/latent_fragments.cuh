// Latents of any cache format as second operands of matrix instructions, decoded from raw bytes in shared
// memory without a tile of bf16 between: keys as columns (K runs over the latent's dimensions), for logits,
// and dimensions as columns (K runs over keys), for values. A key that does not exist is zeros.
#pragma once

#include "ops/cuda/packed_values.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/plan.h"

namespace perigee::cuda {

// The thread's place in a fragment: column and pairs of K.
__device__ inline int fragment_column() { return static_cast<int>(threadIdx.x) % 32 / 4; }
__device__ inline int fragment_pair() { return static_cast<int>(threadIdx.x) % 4; }

template <typename T>
__device__ inline T read_shared(const uint8_t* at) {
  return *reinterpret_cast<const T*>(at);
}
__device__ inline uint32_t decode_e4m3_pair(uint32_t codes, float scale) {
  const float2 x = e4m3_pair(codes);
  return bf16_pair(x.x * scale, x.y * scale);
}
// Two nibbles of a byte, low first.
__device__ inline uint32_t decode_e2m1_pair(uint32_t byte, float scale) {
  return bf16_pair(e2m1_to_float(byte) * scale, e2m1_to_float(byte >> 4) * scale);
}

// Whole records of eight keys: the 16-byte pieces of the same number lie together, permuted by that number,
// so that neither copying records nor reading columns meets bank conflicts.
template <LatentFormat kFormat>
struct EightLatents {
  static constexpr int kPieces = latent_bytes(kFormat) / 16, kBytes = kPieces * 8 * 16;

  __device__ static int offset(int piece, int key) { return (piece * 8 + (key ^ (piece & 7))) * 16; }

  // Dimensions 16·step … 16·step + 15 of the eight keys.
  __device__ static FragmentB load(const uint8_t* eight, int step, float scale) {
    const int pair = fragment_pair();
    const auto piece = [&](int i) { return eight + offset(i, fragment_column()); };
    if constexpr (kFormat == LatentFormat::kBf16) {
      return {{read_shared<uint32_t>(piece(2 * step) + 4 * pair),
               read_shared<uint32_t>(piece(2 * step + 1) + 4 * pair)}};
    } else if constexpr (kFormat == LatentFormat::kFp8) {
      return load_e4m3(piece(step), scale);
    } else {
      constexpr int kRopePiece = kNvfp4RopeOffset / 16, kScalePiece = kNvfp4ScaleOffset / 16;
      constexpr int kBlocks = kLatentRank / kNvfp4Block;  // a step each
      static_assert(kNvfp4Block == kStepK);
      if (step >= kBlocks) return load_e4m3(piece(kRopePiece + step - kBlocks), scale);
      const uint8_t* codes = piece(step / 2) + step % 2 * 8 + pair;
      const float s = e4m3_pair(read_shared<uint8_t>(piece(kScalePiece + step / 16) + step % 16)).x * scale;
      return {{decode_e2m1_pair(read_shared<uint8_t>(codes), s),
               decode_e2m1_pair(read_shared<uint8_t>(codes + 4), s)}};
    }
  }

 private:
  __device__ static FragmentB load_e4m3(const uint8_t* piece, float scale) {
    const uint8_t* codes = piece + 2 * fragment_pair();
    return {{decode_e4m3_pair(read_shared<uint16_t>(codes), scale),
             decode_e4m3_pair(read_shared<uint16_t>(codes + 8), scale)}};
  }
};

// The same kDims of the value's dimensions of many keys, as raw bytes. Of every 16 keys those that a fragment
// takes together (2t and its like) lie side by side.
template <LatentFormat kFormat, int kDims>
struct LatentSlices {
  static constexpr int kPieces = kFormat == LatentFormat::kBf16  ? kDims / 8  // 16 bytes, of a key
                                 : kFormat == LatentFormat::kFp8 ? kDims / 16
                                                                 : kDims / 32;
  static constexpr int kRow = kPieces * 16;
  static constexpr bool kScaled = kFormat == LatentFormat::kNvfp4;  // four bytes a key, behind all rows

  static constexpr int bytes(int keys) { return keys * (kRow + (kScaled ? 4 : 0)); }

  // Which key has the place-th row.
  __device__ static int key_of(int place) {
    const int in_group = place % kStepK;
    return place - in_group + in_group / 8 * 8 + in_group % 4 * 2 + in_group / 4 % 2;
  }

  // Piece `piece` of the place-th row, by one thread. `any` is some address that can be read.
  template <int kKeys>
  __device__ static void copy(uint8_t* slices, int place, int piece, const uint8_t* record, int slice,
                              const void* any) {
    copy_16(slices + place * kRow + piece * 16, record ? record + slice * kRow + piece * 16 : any,
            record != nullptr);
    if constexpr (kScaled) {
      if (piece == 0) {
        const void* scales = record ? record + kNvfp4ScaleOffset + slice * kDims / kNvfp4Block / 4 * 4 : any;
        copy_4(slices + kKeys * kRow + place * 4, scales, record != nullptr);
      }
    }
  }

  // Keys 16·step … 16·step + 15 of dimensions 8·eight … 8·eight + 7.
  template <int kKeys>
  __device__ static FragmentB load(const uint8_t* slices, int step, int eight, int slice, float scale) {
    const int column = fragment_column(), first = step * kStepK + fragment_pair();
    if constexpr (kFormat == LatentFormat::kBf16) {
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        x[i] = read_shared<uint16_t>(slices + (first + 4 * i) * kRow + (eight * 8 + column) * 2);
      return {{x[0] | x[1] << 16, x[2] | x[3] << 16}};
    } else if constexpr (kFormat == LatentFormat::kFp8) {
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        x[i] = read_shared<uint8_t>(slices + (first + 4 * i) * kRow + eight * 8 + column);
      return {{decode_e4m3_pair(__byte_perm(x[0], x[1], 0x7740), scale),
               decode_e4m3_pair(__byte_perm(x[2], x[3], 0x7740), scale)}};
    } else {
      const int block = slice * kDims / kNvfp4Block % 4 + eight / 2;
      float x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t codes = read_shared<uint8_t>(slices + (first + 4 * i) * kRow + eight * 4 + column / 2);
        const float s =
            e4m3_pair(read_shared<uint8_t>(slices + kKeys * kRow + (first + 4 * i) * 4 + block)).x * scale;
        x[i] = e2m1_to_float(codes >> column % 2 * 4) * s;
      }
      return {{bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3])}};
    }
  }
};

}  // namespace perigee::cuda
