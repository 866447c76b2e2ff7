// What a block of attend_sm90.cu works on, item after item: a walk of up to 64 heads, of neighbouring rows of
// a sequence together when a row has so few that several rows' heads fit the 64 rows of a product.
//
// Rows that go together lie at positions of one multiple of their number, hence in one chunk. As long as
// segments begin where chunks do, a walk has the same tiles for all of them, and only in the last one keys
// that some do not see yet. Their weights there are zeros, so that values must be finite (0 · NaN is NaN):
// where they are not, rows go one by one.
#pragma once

#include "ops/cuda/attend.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/wgmma.cuh"

namespace perigee::cuda {

struct AttendItem {
  int row, rows;  // the first, of the launch; how many
  int walk, first_head, heads;
  __device__ int product_rows() const { return rows * heads; }
};

// Whether a walk's last `count` keys, all of one chunk, have finite values. By a warp.
template <LatentFormat kFormat>
__device__ bool finite_values(const AttendParameters& a, const Walk& walk, int count) {
  constexpr int kPieces = latent_bytes(kFormat) / 16;
  const auto finite = [](int piece, uint32_t word) {
    if constexpr (kFormat == LatentFormat::kBf16) {
      return (word & 0x7F80u) != 0x7F80u && (word & 0x7F800000u) != 0x7F800000u;
    } else {  // E4M3 has no infinities; of NVFP4 only the scales of blocks can be NaN
      const bool codes = kFormat == LatentFormat::kNvfp4 && piece < kNvfp4ScaleOffset / 16;
      return codes || __vcmpeq4(word & 0x7F7F7F7Fu, 0x7F7F7F7Fu) == 0;
    }
  };
  const int position = walk.position(walk.keys - count);
  const uint4* record = reinterpret_cast<const uint4*>(a.pages.latent(walk.sequence, position / kPageTokens) +
                                                       position % kPageTokens * latent_bytes(kFormat));
  bool all = true;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < count * kPieces; i += 32) {
    const uint4 x = record[i];
    const int piece = i % kPieces;
    all = all && finite(piece, x.x) && finite(piece, x.y) && finite(piece, x.z) && finite(piece, x.w);
  }
  return __all_sync(kAllLanes, all);
}

// The items of a launch, in an order in which blocks that run together share keys.
class AttendWork {
 public:
  AttendWork(const AttendParameters& a, int rows)
      : rows_(rows), pack_(rows_together(a)), groups_((a.heads + kGroupRows - 1) / kGroupRows) {}

  // Places of items: rows that begin no pack have them too, without work. They come last, so that all blocks
  // get the same share of the others.
  __host__ __device__ int places(const AttendParameters& a) const {
    return packs() * pack_ * a.walks() * groups_;
  }
  // use(item, walk) for the items of this block, by whole warps.
  template <LatentFormat kFormat, typename Use>
  __device__ void each_item(const AttendParameters& a, const Use& use) const {
    for (int i = blockIdx.x; i < places(a); i += gridDim.x) {
      const AttendItem all = item(a, i);
      if (all.rows == 0) continue;
      const int together = share_products<kFormat>(a, all) ? all.rows : 1;
      for (int row = all.row; row < all.row + all.rows; row += together) {
        AttendItem one = all;
        one.row = row, one.rows = together;
        use(one, Walk(a, a.first_row + row + together - 1, all.walk));
      }
    }
  }

 private:
  static int rows_together(const AttendParameters& a) {
    int pack = 1;
    if (!a.list && a.segment % kChunk == 0)
      while (pack < kChunk && 2 * pack * a.heads <= kGroupRows) pack *= 2;
    return pack;
  }
  __host__ __device__ int packs() const { return (rows_ + pack_ - 1) / pack_; }

  __device__ AttendItem item(const AttendParameters& a, int i) const {
    const int size = (a.heads + groups_ - 1) / groups_, first = i % groups_ * size;
    const int place = i / groups_ / a.walks(), row = place % packs() * pack_ + place / packs();
    return {.row = row,
            .rows = rows_from(a, row),
            .walk = i / groups_ % a.walks(),
            .first_head = first,
            .heads = min(size, a.heads - first)};
  }
  // Of the pack that begins with `row`, 0 where none does: part of one where a sequence or the launch begins
  // or ends.
  __device__ int rows_from(const AttendParameters& a, int row) const {
    if (pack_ == 1) return 1;
    if (row >= rows_) return 0;
    const SequenceRows& s = a.rows.sequences[a.rows.sequence_of_row[a.first_row + row]];
    const int of_sequence = a.first_row + row - s.first_row;
    const int of_pack = static_cast<int>((s.start + of_sequence) % pack_);
    if (of_pack > 0 && of_sequence > 0 && row > 0) return 0;
    return min(pack_ - of_pack, min(rows_ - row, s.rows - of_sequence));
  }
  template <LatentFormat kFormat>
  __device__ static bool share_products(const AttendParameters& a, const AttendItem& item) {
    if (item.rows == 1) return true;
    const Walk last(a, a.first_row + item.row + item.rows - 1, item.walk);
    const int unseen = last.keys - DenseKeys(a, item.walk, last.visible - (item.rows - 1)).keys;
    return unseen == 0 || finite_values<kFormat>(a, last, unseen);
  }

  int rows_, pack_;
  int groups_;  // of up to 64 heads; 1 when rows go together
};

}  // namespace perigee::cuda
