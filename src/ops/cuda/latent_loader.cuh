// How eight warps bring tiles of 64 latents of any cache format into shared memory as tiles of wgmma.cuh:
// nine of 64 keys × 64 dimensions. Each warp looks after eight keys of every tile, so warps need nothing of
// each other. Raw bytes of the next tile are on their way while a tile is decoded. A key that does not exist
// is zeros.
#pragma once

#include "ops/cuda/attend.cuh"
#include "ops/cuda/packed_values.cuh"
#include "ops/cuda/reduce.cuh"

namespace perigee::cuda {

constexpr int kLoaderWarps = 8, kWarpKeys = kKeyTile / kLoaderWarps;
constexpr int kLatentTiles = kLatentDim / kTileK;
constexpr int kTileValues = kKeyTile * kTileK;  // of one of the nine

// Where the warp's keys of a walk lie in memory, found four tiles at a time and well before they are needed:
// lane 8t + k keeps key k of the t-th of them.
template <LatentFormat kFormat>
class Records {
 public:
  __device__ Records(const AttendParameters& a, const Walk& walk, int warp)
      : walk_(walk),
        page_(a.pages.page[walk.sequence]),
        offset_(a.pages.latent_offset),
        first_(static_cast<int>(threadIdx.x) % 32 / kWarpKeys * kKeyTile + warp * kWarpKeys +
               static_cast<int>(threadIdx.x) % kWarpKeys) {
    find(0);
    resolve();
    enter(0);
  }
  // Before the records of `tile` are asked for, in ascending order.
  __device__ void enter(int tile) {
    if (tile % kAtOnce == 0) {
      now_ = next_;
      find(tile / kAtOnce + 1);
    } else if (tile % kAtOnce == 2) {
      resolve();
    }
  }
  // Null: no key. `key` is one of the warp's eight and may differ between lanes.
  __device__ const uint8_t* of(int tile, int key) const {
    return reinterpret_cast<const uint8_t*>(__shfl_sync(kAllLanes, now_, tile % kAtOnce * kWarpKeys + key));
  }

 private:
  static constexpr int kAtOnce = 32 / kWarpKeys;
  __device__ void find(int group) {
    const int key = group * kAtOnce * kKeyTile + first_;
    next_ = key < walk_.keys ? walk_.position(key) : -1;
  }
  __device__ void resolve() {
    const int position = static_cast<int>(next_);
    next_ = 0;
    if (position >= 0) {
      next_ = reinterpret_cast<int64_t>(page_[position / kPageTokens] + offset_ +
                                        position % kPageTokens * latent_bytes(kFormat));
    }
  }

  const Walk& walk_;
  uint8_t* const* page_;
  int64_t offset_;
  int first_;
  int64_t now_ = 0;  // addresses
  int64_t next_;     // positions, then addresses
};

__device__ inline uint4 load_piece(const uint8_t* record, int byte) {
  return record ? *reinterpret_cast<const uint4*>(record + byte) : uint4{0, 0, 0, 0};
}
__device__ inline void store_piece(bf16* tile, int row, int piece, const uint4& values) {
  *reinterpret_cast<uint4*>(tile + tile_offset(row, piece)) = values;
}

// A lane's share of a warp's eight keys: kPieces times a few raw bytes. Eight neighbouring lanes store to
// different banks.
template <LatentFormat kFormat>
struct LatentPieces;

template <>
struct LatentPieces<LatentFormat::kFp8> {
  static constexpr int kPieces = 9;  // the last is of the tile behind the value's
  struct Raw {
    uint4 codes;
  };
  template <typename Records>
  __device__ static Raw fetch(const Records& records, int tile, int i) {
    const int lane = static_cast<int>(threadIdx.x) % 32, quarter = lane % 4;
    if (i == 8) return {load_piece(records.of(tile, lane / 4), kLatentRank + quarter * 16)};
    return {load_piece(records.of(tile, i / 2 * 2 + lane / 4 % 2),
                       (i % 2 * 4 + lane / 8) * kTileK + quarter * 16)};
  }
  __device__ static void store(const Raw& raw, float scale, bf16* tiles, int warp, int i) {
    const int lane = static_cast<int>(threadIdx.x) % 32, quarter = lane % 4;
    const int row = warp * kWarpKeys + (i == 8 ? lane / 4 : i / 2 * 2 + lane / 4 % 2);
    bf16* tile = tiles + (i == 8 ? 8 : i % 2 * 4 + lane / 8) * kTileValues;
    uint32_t pair[8];
    decode_e4m3(raw.codes, scale, pair);
    store_piece(tile, row, 2 * quarter, {pair[0], pair[1], pair[2], pair[3]});
    store_piece(tile, row, 2 * quarter + 1, {pair[4], pair[5], pair[6], pair[7]});
  }
};

template <>
struct LatentPieces<LatentFormat::kNvfp4> {
  static constexpr int kPieces = 5;
  struct Raw {
    uint4 codes;
    uint16_t scales;
  };
  template <typename Records>
  __device__ static Raw fetch(const Records& records, int tile, int i) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (i == 4) return {load_piece(records.of(tile, lane / 4), kNvfp4RopeOffset + lane % 4 * 16), 0};
    const int half = (i % 2 * 4 + lane / 8) * 2 + lane % 2;  // 32 values
    const uint8_t* record = records.of(tile, i / 2 * 4 + lane / 2 % 4);
    return {load_piece(record, half * 16),
            record ? *reinterpret_cast<const uint16_t*>(record + kNvfp4ScaleOffset + 2 * half) : uint16_t{0}};
  }
  __device__ static void store(const Raw& raw, float scale, bf16* tiles, int warp, int i) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (i == 4) {
      uint32_t pair[8];
      decode_e4m3(raw.codes, scale, pair);
      bf16* tile = tiles + 8 * kTileValues;
      const int row = warp * kWarpKeys + lane / 4, piece = lane % 4 * 2;
      store_piece(tile, row, piece, {pair[0], pair[1], pair[2], pair[3]});
      store_piece(tile, row, piece + 1, {pair[4], pair[5], pair[6], pair[7]});
      return;
    }
    const float2 s = e4m3_pair(raw.scales);
    const int row = warp * kWarpKeys + i / 2 * 4 + lane / 2 % 4, piece = lane % 2 * 4;
    bf16* tile = tiles + (i % 2 * 4 + lane / 8) * kTileValues;
    store_piece(tile, row, piece, decode_e2m1(raw.codes.x, s.x * scale));
    store_piece(tile, row, piece + 1, decode_e2m1(raw.codes.y, s.x * scale));
    store_piece(tile, row, piece + 2, decode_e2m1(raw.codes.z, s.y * scale));
    store_piece(tile, row, piece + 3, decode_e2m1(raw.codes.w, s.y * scale));
  }
};

// Tiles of one walk in order: `room(tile)` gives where the nine go as soon as there is room, `filled(tile)`
// hands over what this thread has written or, of bf16, copies: those may still be under way, so that the next
// tile's need not wait for them.
template <LatentFormat kFormat, typename Room, typename Filled>
__device__ void load_latents(const AttendParameters& a, const Walk& walk, int warp, const Room& room,
                             const Filled& filled) {
  Records<kFormat> records(a, walk, warp);
  if constexpr (kFormat == LatentFormat::kBf16) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int tile = 0; tile < walk.tiles; ++tile) {
      if (tile > 0) records.enter(tile);
      bf16* tiles = room(tile);
#pragma unroll
      for (int i = 0; i < kLatentTiles * 2; ++i) {  // four keys, 16 bytes of each of eight lanes
        const int key = i % 2 * 4 + lane / 8, piece = lane % 8;
        const uint8_t* record = records.of(tile, key);
        copy_16(tiles + i / 2 * kTileValues + tile_offset(warp * kWarpKeys + key, piece),
                record ? record + (i / 2 * kTileK + piece * kPiece) * sizeof(bf16)
                       : reinterpret_cast<const uint8_t*>(a.query),
                record != nullptr);
      }
      filled(tile);
    }
  } else {
    using Pieces = LatentPieces<kFormat>;
    constexpr int kAhead = 5;  // pieces on their way
    static_assert(Pieces::kPieces >= kAhead && Pieces::kPieces <= 2 * kAhead);
    typename Pieces::Raw raw[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) raw[i] = Pieces::fetch(records, 0, i);
    for (int tile = 0; tile < walk.tiles; ++tile) {
      bf16* tiles = room(tile);
#pragma unroll
      for (int i = 0; i < Pieces::kPieces; ++i) {
        const int slot = i % kAhead;
        Pieces::store(raw[slot], a.pages.latent_scale, tiles, warp, i);
        if (i + kAhead < Pieces::kPieces) {
          raw[slot] = Pieces::fetch(records, tile, i + kAhead);
        } else {
          if (i + kAhead == Pieces::kPieces) records.enter(tile + 1);
          raw[slot] = Pieces::fetch(records, tile + 1, slot);
        }
      }
      filled(tile);
    }
  }
}

}  // namespace perigee::cuda
