// What the two kernels that score index keys share: the share of a block, where heads lie, and the last sum.
#pragma once

#include "ops/cuda/index_select.h"
#include "ops/cuda/reduce.cuh"

namespace perigee::cuda {

constexpr int kHeadGroup = 32;

// The share of a block: kScoreBlockKeys keys of one sequence, and of its rows those that see the first of
// them, and more keys than they select.
struct ScoreShare {
  int sequence, first_key;
  int start;       // position of the sequence's first row
  int keys;        // that exist
  int begin, end;  // rows; none if begin ≥ end

  __device__ ScoreShare(const ScoreParameters& a, int rows_of_block)
      : sequence(blockIdx.z), first_key(blockIdx.x * kScoreBlockKeys) {
    const SequenceRows seq = a.rows.sequences[sequence];
    start = static_cast<int>(seq.start);
    keys = min(kScoreBlockKeys, start + seq.rows - first_key);
    const int from = max(seq.first_row, a.first_row) + static_cast<int>(blockIdx.y) * rows_of_block;
    end = min(min(from + rows_of_block, seq.first_row + seq.rows), a.end_row);
    begin = max(from, seq.first_row + max(a.top_k, first_key) - start);
  }
};

// Where head h of a group lies among its columns: column c of the j-th product of 8 columns is head 8·(c/2) +
// 2j + c%2, so that thread t of four gets heads 8t … 8t + 7 in ascending j.
__device__ constexpr int column_of_head(int h) { return h % 8 / 2 * 8 + h / 8 * 2 + h % 2; }

// Four sums of each of four neighbouring threads, added over them as (0 + 1) + (2 + 3); thread t gets the
// t-th.
__device__ inline float add_over_four(const float (&x)[4]) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  float a = odd ? x[1] : x[0], b = odd ? x[3] : x[2];
  a += __shfl_xor_sync(kAllLanes, odd ? x[0] : x[1], 1);
  b += __shfl_xor_sync(kAllLanes, odd ? x[2] : x[3], 1);
  return (upper ? b : a) + __shfl_xor_sync(kAllLanes, upper ? a : b, 2);
}

}  // namespace perigee::cuda
