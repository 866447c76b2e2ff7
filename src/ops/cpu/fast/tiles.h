// Tiles: the order in which the fast kernels read a weight matrix. Vector lanes are outputs, so the sum of
// each of the 16 partials (arith.h) is a chain of vertical operations, and the final tree is vertical too.
//
//   bf16:   [block of 16 outputs][16 partials][segment][K block of 32][16 outputs] pairs of bf16
//   MXFP4:  [block of 32 outputs]( [segment][K block of 32][32 outputs] e8m0 scales,
//                                  [16 partials][segment][K block of 32][32 outputs] pairs of e2m1 )
//
// A block is read from its first byte to its last. The partials stand in the order 0,8,4,12, 2,10,6,14,
// 1,9,5,13, 3,11,7,15, in which the fixed tree is one over neighbours. A lane of the lane rule is a segment
// of columns, padded to whole K blocks; outputs and K are padded with zeros. The 32 outputs of MXFP4 stand in
// the order kMxfp4Order, which makes the halves of a vector that byte shuffles widen come out as vectors of
// neighbours.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/weights.h"

namespace perigee::cpu {

constexpr int kTileOutputs = 16;
constexpr int kTilePartials = 16;
constexpr int kTileStep = 4 * kTileOutputs;  // bytes of one partial of a K block: 16 pairs of bf16
constexpr int kPartialOrder[kTilePartials] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};

constexpr int kMxfp4Outputs = 32;
constexpr int kMxfp4Step = kMxfp4Outputs;  // bytes of one partial of a K block: 32 pairs of e2m1
constexpr int kMxfp4Order[kMxfp4Outputs] = {0, 1, 2, 3, 8,  9,  10, 11, 16, 17, 18, 19, 24, 25, 26, 27,
                                            4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31};

constexpr int64_t k_blocks(int k) { return (k + 31) / 32; }

// The shape of a tiled matrix.
struct TileShape {
  int out = 0, in = 0;
  int segments = 1;  // equal blocks of columns, each a sum of its own
  bool mxfp4 = false;

  int columns() const { return in / segments; }  // of a segment
  int64_t steps() const { return segments * k_blocks(columns()); }
  int outputs() const { return mxfp4 ? kMxfp4Outputs : kTileOutputs; }  // of a block
  int64_t blocks() const { return (out + outputs() - 1) / outputs(); }
  int step_bytes() const { return mxfp4 ? kMxfp4Step : kTileStep; }
  int64_t partial_bytes() const { return steps() * step_bytes(); }
  int64_t scale_bytes() const { return mxfp4 ? steps() * kMxfp4Outputs : 0; }
  int64_t block_bytes() const { return scale_bytes() + kTilePartials * partial_bytes(); }
  int64_t bytes() const { return blocks() * block_bytes(); }
};

inline TileShape tile_shape(const Linear& w, int segments) {
  return {.out = w.out, .in = w.in, .segments = segments};
}
inline TileShape tile_shape(const Mxfp4Linear& w, int segments) {
  return {.out = w.out, .in = w.in, .segments = segments, .mxfp4 = true};
}

// A K block has one scale an output: a segment may not straddle the blocks of 32 columns that share a scale.
constexpr bool mxfp4_segments_fit(int columns) {
  return columns % 32 == 0 || (columns > 1 && 32 % columns == 0);
}

// A tiled matrix whose columns are cut into `segments`; no tiles when it has none for that cut. Cuts at
// multiples of 32 columns have the same tiles, whatever their number.
struct TiledMatrix {
  const std::byte* tiles = nullptr;
  TileShape shape;
};
template <typename Weight>
TiledMatrix tiled_matrix(const Weight& w, int segments) {
  const auto whole = [&](int n) { return w.in / n % 32 == 0; };
  const bool same = segments == w.tiles.segments || (whole(segments) && whole(w.tiles.segments));
  return {same ? w.tiles.data : nullptr, tile_shape(w, segments)};
}

// Writes one block of outputs as block_bytes() bytes.
void tile_block(const Linear& w, const TileShape& shape, int64_t block, std::byte* tiles);
void tile_block(const Mxfp4Linear& w, const TileShape& shape, int64_t block, std::byte* tiles);

}  // namespace perigee::cpu
