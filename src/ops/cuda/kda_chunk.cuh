// Which rows of a chunk exist, and where a sequence's rows lie.
#pragma once

#include "ops/cuda/kda_chunk.h"

namespace perigee::cuda {

struct ChunkSpan {
  int64_t start;  // position of row 0
  int old;        // rows [0, old) are of earlier steps, in the ring
  int rows;       // rows [old, rows) are of this step; the others do not exist

  __device__ ChunkSpan(const SequenceRows& sequence, int64_t base, int chunk)
      : start(base + int64_t{chunk} * kChunk),
        old(static_cast<int>(min(max(sequence.start - start, int64_t{0}), int64_t{kChunk}))),
        rows(static_cast<int>(min(sequence.start + sequence.rows - start, int64_t{kChunk}))) {}
  __device__ bool is_new(int i) const { return i >= old && i < rows; }
  // Whether rows [first, first + count) hold new ones.
  __device__ bool has_new(int first, int count) const { return first < rows && first + count > old; }
  __device__ bool whole() const { return rows == kChunk; }
};

__device__ inline int chunks_of(const SequenceRows& sequence, int64_t base) {
  return static_cast<int>((sequence.start + sequence.rows - base + kChunk - 1) / kChunk);
}

__device__ inline int ring_row(int64_t position) { return static_cast<int>(position % KdaSlot::kRing); }

// From this position on rows go to the ring.
__device__ inline int64_t keep_from(const SequenceRows& sequence, int64_t base) {
  return max(base, sequence.accepted / kChunk * kChunk);
}

// Key and log decay of a row, four channels a lane.
struct KeyRow {
  uint2 k;  // bf16
  float4 g;
};
// `at`: the first channel of the head's, plus the lane's.
__device__ inline KeyRow load_key(const bf16* k, const float* g, int64_t at) {
  return {*reinterpret_cast<const uint2*>(k + at), *reinterpret_cast<const float4*>(g + at)};
}

}  // namespace perigee::cuda
