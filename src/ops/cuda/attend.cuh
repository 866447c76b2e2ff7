// What the kernels of sparse_attend and dense_attend share: their arguments, and the walk of one row over its
// keys. Logits are kept as powers of two: weights are 2^(q·k · scale − max), the running max is scaled too.
//
// Orders: q·k is one chain over the 576 dimensions; Σp of a tile is a butterfly over its keys (8 later, then
// strides 1, 16 and 32, then 2 and 4); a value is one chain over the keys of a tile that starts from the
// rescaled value before.
#pragma once

#include <algorithm>
#include <type_traits>

#include "ops/cuda/mma.cuh"
#include "ops/cuda/step_tables.h"
#include "ops/plan.h"

namespace perigee::cuda {

constexpr int kWalkHeads = 16;  // of a group of heads; those past the last are zeros

struct AttendParameters {
  const bf16* query;  // [R, heads, 576]
  RowsView rows;
  PagesView pages;
  const int32_t* list;        // [R, lanes, list_stride] positions to walk, or null: all
  const int32_t* list_count;  // [R, lanes]
  int list_stride;
  int heads, groups;                    // groups of 16 heads
  int lanes, segments, segment, tiles;  // segments a lane; positions a segment; tiles a walk has at most
  int first_row;                        // of the launch
  float scale;                          // of q·k, times log2 e
  float2* sums;  // [rows of the launch, groups, lanes, segments, 16] max and Σp of a walk; Σp = 0: no key
  float* value;  // [rows of the launch, groups, lanes, segments, 16, 512], not divided; unset where Σp = 0
  bf16* out;     // [R, heads, 512]

  __host__ __device__ int walks() const { return lanes * segments; }
};

// Keys of `lane` at positions below `end`.
__device__ inline int lane_keys_below(int end, int lane, int lanes) {
  const int round = kChunk * lanes, rest = end % round - lane * kChunk;
  return end / round * kChunk + min(max(rest, 0), kChunk);
}

// What a row that sees `visible` positions has in walk `walk`, when no list says it.
struct DenseKeys {
  int keys, before;  // before: of the lane, in earlier segments

  __device__ DenseKeys(const AttendParameters& a, int walk, int visible) {
    const int lane = walk / a.segments;
    const int begin = min(walk % a.segments * a.segment, visible), end = min(begin + a.segment, visible);
    before = lane_keys_below(begin, lane, a.lanes);
    keys = lane_keys_below(end, lane, a.lanes) - before;
  }
};

// Row `row` over the keys of walk `walk` of its lanes and segments.
struct Walk {
  int row, sequence;
  int visible;  // positions
  int keys, tiles;
  int lane, lanes, keys_before;  // of the lane, in earlier segments
  const int32_t* list;

  __device__ Walk(const AttendParameters& a, int row, int walk)
      : row(row),
        sequence(a.rows.sequence_of_row[row]),
        visible(static_cast<int>(a.rows.position(row)) + 1),
        lane(walk / a.segments),
        lanes(a.lanes),
        keys_before(0),
        list(nullptr) {
    if (a.list) {
      list = a.list + (int64_t{row} * lanes + lane) * a.list_stride;
      keys = a.list_count[int64_t{row} * lanes + lane];
    } else {
      const DenseKeys dense(a, walk, visible);
      keys = dense.keys;
      keys_before = dense.before;
    }
    tiles = (keys + kKeyTile - 1) / kKeyTile;
  }
  __device__ int position(int key) const {
    if (list) return list[key];
    const int i = keys_before + key;
    return (i / kChunk * lanes + lane) * kChunk + i % kChunk;
  }
};

// launch(std::integral_constant<LatentFormat, …>) for the format at hand.
template <typename Launch>
auto for_format(LatentFormat format, const Launch& launch) {
  switch (format) {
    case LatentFormat::kBf16:
      return launch(std::integral_constant<LatentFormat, LatentFormat::kBf16>());
    case LatentFormat::kFp8:
      return launch(std::integral_constant<LatentFormat, LatentFormat::kFp8>());
    default:
      return launch(std::integral_constant<LatentFormat, LatentFormat::kNvfp4>());
  }
}

// Rows [first_row, first_row + rows), a cluster of blocks for each walk of 16 heads: false, and nothing done,
// if they are so many that launch_attend_rows is faster. sm_90.
bool launch_attend_few(const AttendParameters& p, int rows, cudaStream_t stream);
// The same, a block for each walk of up to 64 heads, of several rows where heads are few.
void launch_attend_rows(const AttendParameters& p, int rows, cudaStream_t stream);

}  // namespace perigee::cuda
