// How the threads of a block bring 64 latents of any cache format into shared memory as bf16: whole records
// through registers, or a slice of the value dimensions through stages of raw bytes. A record that is null is
// a masked key: zeros.
#pragma once

#include "ops/cuda/packed_values.cuh"
#include "ops/plan.h"

namespace perigee::cuda {

constexpr int kAttendThreads = 256;
constexpr int kLatentStride = kLatentDim + kRowPad;  // of a tile of whole latents
constexpr int kSlice = 64;                           // value dimensions
constexpr int kSliceStride = kSlice + kRowPad;

__device__ inline uint4 load_16(const uint8_t* record, int byte) {
  return record ? *reinterpret_cast<const uint4*>(record + byte) : uint4{0, 0, 0, 0};
}

// A thread's share of a tile of whole records: load() starts, store() ends.
template <LatentFormat kFormat>
class WholeLatents;

template <>
class WholeLatents<LatentFormat::kBf16> {
 public:
  __device__ void load(const uint8_t* const* record) {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const int at = i * kAttendThreads + threadIdx.x;
      piece_[i] = load_16(record[at / kPieces], at % kPieces * 16);
    }
  }
  __device__ void store(bf16* tile, float) const {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const int at = i * kAttendThreads + threadIdx.x;
      *reinterpret_cast<uint4*>(tile + at / kPieces * kLatentStride + at % kPieces * 8) = piece_[i];
    }
  }

 private:
  static constexpr int kPieces = kLatentDim / 8, kShare = kKeyTile * kPieces / kAttendThreads;
  static_assert(kKeyTile * kPieces % kAttendThreads == 0);
  uint4 piece_[kShare];
};

template <>
class WholeLatents<LatentFormat::kFp8> {
 public:
  __device__ void load(const uint8_t* const* record) {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const int at = i * kAttendThreads + threadIdx.x;
      piece_[i] = load_16(record[at / kPieces], at % kPieces * 16);
    }
  }
  __device__ void store(bf16* tile, float scale) const {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const int at = i * kAttendThreads + threadIdx.x;
      decode_e4m3(piece_[i], scale, tile + at / kPieces * kLatentStride + at % kPieces * 16);
    }
  }

 private:
  static constexpr int kPieces = kLatentDim / 16, kShare = kKeyTile * kPieces / kAttendThreads;
  static_assert(kKeyTile * kPieces % kAttendThreads == 0);
  uint4 piece_[kShare];
};

template <>
class WholeLatents<LatentFormat::kNvfp4> {
 public:
  __device__ void load(const uint8_t* const* record) {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const int at = i * kAttendThreads + threadIdx.x, piece = at % kPieces;
      const uint8_t* r = record[at / kPieces];
      piece_[i] = load_16(r, piece * 16);
      scales_[i] = r ? *reinterpret_cast<const uint16_t*>(r + kNvfp4ScaleOffset + 2 * piece) : uint16_t{0};
    }
    rope_ = load_16(record[threadIdx.x / kRopePieces], kNvfp4RopeOffset + threadIdx.x % kRopePieces * 16);
  }
  __device__ void store(bf16* tile, float scale) const {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const int at = i * kAttendThreads + threadIdx.x;
      const float2 s = e4m3_pair(scales_[i]);
      decode_e2m1(piece_[i], s.x * scale, s.y * scale,
                  tile + at / kPieces * kLatentStride + at % kPieces * 32);
    }
    decode_e4m3(
        rope_, scale,
        tile + threadIdx.x / kRopePieces * kLatentStride + kLatentRank + threadIdx.x % kRopePieces * 16);
  }

 private:
  static constexpr int kPieces = kLatentRank / 32, kShare = kKeyTile * kPieces / kAttendThreads;
  static constexpr int kRopePieces = kLatentRope / 16;
  static_assert(kKeyTile * kPieces % kAttendThreads == 0 && kKeyTile * kRopePieces == kAttendThreads);
  uint4 piece_[kShare], rope_;
  uint16_t scales_[kShare];
};

// Dimensions [kSlice · n, kSlice · (n + 1)) of 64 latents. A thread decodes what it fetched itself, so that
// its own wait for the copies is enough. `any` is some address that can be read.
template <LatentFormat kFormat>
struct LatentSlice;

template <>
struct LatentSlice<LatentFormat::kBf16> {
  static constexpr int kPieces = kSlice / 8, kShare = kKeyTile * kPieces / kAttendThreads;
  static constexpr int kStageBytes = kKeyTile * kSlice * 2;
  __device__ static void fetch(uint8_t* stage, const uint8_t* const* record, int n, const void* any) {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const int at = i * kAttendThreads + threadIdx.x;
      const uint8_t* r = record[at / kPieces];
      copy_16(stage + at * 16, r ? r + n * kSlice * 2 + at % kPieces * 16 : any, r != nullptr);
    }
  }
  __device__ static void decode(const uint8_t* stage, float, bf16* slice) {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const int at = i * kAttendThreads + threadIdx.x;
      *reinterpret_cast<uint4*>(slice + at / kPieces * kSliceStride + at % kPieces * 8) =
          *reinterpret_cast<const uint4*>(stage + at * 16);
    }
  }
};

template <>
struct LatentSlice<LatentFormat::kFp8> {
  static constexpr int kPieces = kSlice / 16;
  static constexpr int kStageBytes = kKeyTile * kSlice;
  static_assert(kKeyTile * kPieces == kAttendThreads);
  __device__ static void fetch(uint8_t* stage, const uint8_t* const* record, int n, const void* any) {
    const uint8_t* r = record[threadIdx.x / kPieces];
    copy_16(stage + threadIdx.x * 16, r ? r + n * kSlice + threadIdx.x % kPieces * 16 : any, r != nullptr);
  }
  __device__ static void decode(const uint8_t* stage, float scale, bf16* slice) {
    decode_e4m3(*reinterpret_cast<const uint4*>(stage + threadIdx.x * 16), scale,
                slice + threadIdx.x / kPieces * kSliceStride + threadIdx.x % kPieces * 16);
  }
};

template <>
struct LatentSlice<LatentFormat::kNvfp4> {
  static constexpr int kPieces = kSlice / 32, kThreads = kKeyTile * kPieces;
  static constexpr int kStageBytes = kThreads * (16 + 4);  // codes, then the slice's four scales once a piece
  static_assert(kThreads <= kAttendThreads && kSlice / kNvfp4Block == 4);
  __device__ static void fetch(uint8_t* stage, const uint8_t* const* record, int n, const void* any) {
    if (threadIdx.x >= kThreads) return;
    const uint8_t* r = record[threadIdx.x / kPieces];
    copy_16(stage + threadIdx.x * 16, r ? r + n * kSlice / 2 + threadIdx.x % kPieces * 16 : any,
            r != nullptr);
    copy_4(stage + kThreads * 16 + threadIdx.x * 4, r ? r + kNvfp4ScaleOffset + n * 4 : any, r != nullptr);
  }
  __device__ static void decode(const uint8_t* stage, float scale, bf16* slice) {
    if (threadIdx.x >= kThreads) return;
    const int piece = threadIdx.x % kPieces;
    const uint32_t four = *reinterpret_cast<const uint32_t*>(stage + kThreads * 16 + threadIdx.x * 4);
    const float2 s = e4m3_pair(four >> (16 * piece) & 0xFFFFu);
    decode_e2m1(*reinterpret_cast<const uint4*>(stage + threadIdx.x * 16), s.x * scale, s.y * scale,
                slice + threadIdx.x / kPieces * kSliceStride + piece * 32);
  }
};

}  // namespace perigee::cuda
