// The kernels of a product with bf16 weights. One reads weights at the speed of memory for few rows, one
// tiles many; both run the same chain of matrix instructions for an output element, so they give the same
// bits. On Hopper many_rows_sm90.cuh replaces the second, but where rows of x are scattered.
//
// A Job says what is multiplied: DenseWeights (below), of which a tile has rows of one matrix, or of two that
// are needed together (gate and up: kMatrices = 2, alternating in groups of kGroup rows), and
//   bool begin()               false: nothing to do for this block
//   int k()                    length of the sum, a multiple of 8
//   const bf16* row(r), any_row()   row r of the block's x, or null; some valid address
//   void finish(output, row, value[kMatrices])   `output` counts from the block's first
//   kWeightsKnown              begin() and the weights come from no earlier kernel
#pragma once

#include "ops/cuda/mma.cuh"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/segments.h"

namespace perigee::cuda {

// A thread's share of copying kRows rows of kTileK values from `k` on, up to `k_end`: zeros behind it and for
// rows that are null.
template <int kRows, int kThreads, typename RowPointer>
__device__ void copy_tile(bf16* tile, int thread, int k, int k_end, const bf16* any,
                          const RowPointer& row_pointer) {
  constexpr int kPieces = kRows * (kTileK / kPiece);
  static_assert(kPieces % kThreads == 0);
#pragma unroll
  for (int i = 0; i < kPieces / kThreads; ++i) {
    const int at = i * kThreads + thread, row = at / 8, piece = at % 8;
    const bf16* from = row_pointer(row);
    const bool exists = from != nullptr && k + piece * kPiece < k_end;
    copy_16(tile + tile_offset(row, piece), exists ? from + k + piece * kPiece : any, exists);
  }
}

// x[which] without an array in local memory.
template <typename T>
__device__ T pick(const T (&x)[1], int) {
  return x[0];
}
template <typename T>
__device__ T pick(const T (&x)[2], int which) {
  return which == 0 ? x[0] : x[1];
}

// Where row `tile_row` of a tile of weights comes from.
template <int kMatrices, int kGroup>
struct TileRow {
  int matrix, output;  // from the block's first output
  __device__ explicit TileRow(int tile_row)
      : matrix(tile_row / kGroup % kMatrices),
        output(tile_row / (kGroup * kMatrices) * kGroup + tile_row % kGroup) {}
};

// body(i) for the first `count` instructions of a tile's K: nearly always all, which the compiler then
// overlaps.
template <typename Body>
__device__ void for_steps(int count, const Body& body) {
  if (count == kTileK / kStepK) {
#pragma unroll
    for (int i = 0; i < kTileK / kStepK; ++i) body(i);
  } else {
    for (int i = 0; i < count; ++i) body(i);
  }
}

// --- Few rows: a block computes a few outputs of kRows rows, one warp a segment, each with its own pipeline.
// Blocks are small, so that several share a multiprocessor: while one waits for its first weights or adds its
// segments another's are on their way.

template <typename Job, int kRows>
struct FewRows {
  // Of 16 rows of weights, those of two matrices side by side, in a fragment. Where there are many rows of x,
  // a block takes more weights for each copy of them.
  static constexpr int kFragments = kRows > 16 ? Job::kMatrices : 1;
  static constexpr int kGroup = 16 / Job::kMatrices, kOutputs = kFragments * kGroup;
  static constexpr int kTileRows = kFragments * 16, kTiles = kRows / 8;
  static constexpr int kWeightBytes = kTileRows * kTileK * 2;
  static constexpr int kStageBytes = kWeightBytes + kRows * kTileK * 2;
  static constexpr int kStages = kRows == 8 ? 4 : 3;
};

template <typename Job, int kRows>
__global__ void __launch_bounds__(32 * kMostSegments) few_rows_kernel(Job job, int segments, int stages) {
  using Shape = FewRows<Job, kRows>;
  extern __shared__ __align__(128) uint8_t memory[];
  if constexpr (!Job::kWeightsKnown) begin_in_turn();
  if (!job.template begin<Shape::kOutputs, kRows>()) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int length = job.k() / segments, begin = warp * length, end = begin + length;
  const int steps = (length + kTileK - 1) / kTileK;
  uint8_t* own = memory + warp * stages * Shape::kStageBytes;

  const auto stage_of = [&](int step) { return own + step % Shape::kStages * Shape::kStageBytes; };
  const auto fetch_weights = [&](int step) {
    if (step >= steps) return;
    job.template fetch<Shape::kTileRows, 32, Shape::kGroup>(stage_of(step), lane, begin + step * kTileK, end);
  };
  const auto fetch_x = [&](int step) {
    if (step < steps) {
      copy_tile<kRows, 32>(reinterpret_cast<bf16*>(stage_of(step) + Shape::kWeightBytes), lane,
                           begin + step * kTileK, end, job.any_row(), [&](int r) { return job.row(r); });
    }
    commit_copies();
  };
  for (int step = 0; step < Shape::kStages - 1; ++step) fetch_weights(step);
  if constexpr (Job::kWeightsKnown) begin_in_turn();
  for (int step = 0; step < Shape::kStages - 1; ++step) fetch_x(step);
  float c[Shape::kFragments][Shape::kTiles][4] = {};
  for (int step = 0; step < steps; ++step) {
    wait_copies<Shape::kStages - 2>();
    __syncwarp();
    fetch_weights(step + Shape::kStages - 1);  // into the stage that all lanes have read
    fetch_x(step + Shape::kStages - 1);
    const uint8_t* stage = stage_of(step);
    const bf16* w = reinterpret_cast<const bf16*>(stage);
    const bf16* x = reinterpret_cast<const bf16*>(stage + Shape::kWeightBytes);
    const int inner = (min(kTileK, length - step * kTileK) + kStepK - 1) / kStepK;
    for_steps(inner, [&](int i) {
#pragma unroll
      for (int f = 0; f < Shape::kFragments; ++f) {
        const FragmentA a = load_a(w, f * 16, i);
#pragma unroll
        for (int n = 0; n < Shape::kTiles; ++n) multiply_add(c[f][n], a, load_b(x, n * 8, i));
      }
    });
    __syncwarp();
  }
  wait_copies<0>();
  __syncthreads();  // the stages are read: their place serves the sums

  float(*partial)[Shape::kFragments][Shape::kTiles][4][32] =
      reinterpret_cast<float(*)[Shape::kFragments][Shape::kTiles][4][32]>(memory);
#pragma unroll
  for (int f = 0; f < Shape::kFragments; ++f) {
#pragma unroll
    for (int n = 0; n < Shape::kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) partial[warp][f][n][i][lane] = c[f][n][i];
    }
  }
  __syncthreads();
  constexpr int kOwn = 4 / Job::kMatrices;  // results of a thread and fragment that are of one matrix
  for (int at = threadIdx.x; at < Shape::kFragments * Shape::kTiles * kOwn * 32; at += blockDim.x) {
    const int l = at % 32, i = at / 32 % kOwn, n = at / 32 / kOwn % Shape::kTiles,
              f = at / 32 / kOwn / Shape::kTiles;
    float value[Job::kMatrices];
#pragma unroll
    for (int m = 0; m < Job::kMatrices; ++m) {
      value[m] = partial[0][f][n][i + m * kOwn][l];
      for (int s = 1; s < segments; ++s) value[m] += partial[s][f][n][i + m * kOwn][l];  // left to right
    }
    job.finish(f * Shape::kGroup + l / 4 + i / 2 * 8, n * 8 + l % 4 * 2 + i % 2, value);
  }
}

// --- Many rows: a block computes a tile of 128 rows of weights by 128 rows of x, eight warps of 64 × 32.

constexpr int kManyTile = 128, kManyThreads = 256, kManyStages = 4;
constexpr int kWarpOutputs = 64, kWarpRows = 32;

template <typename Job>
struct ManyRows {
  static constexpr int kOutputs = kManyTile / Job::kMatrices;   // of a block
  static constexpr int kGroup = kWarpOutputs / Job::kMatrices;  // rows of one matrix side by side
  static constexpr int kWeightBytes = kManyTile * kTileK * 2;
  static constexpr int kStageBytes = kWeightBytes + kManyTile * kTileK * 2;
  static constexpr int kBytes = kManyStages * kStageBytes;
};

template <typename Job>
__global__ void __launch_bounds__(kManyThreads, 1) many_rows_kernel(Job job, int segments) {
  using Shape = ManyRows<Job>;
  extern __shared__ __align__(128) uint8_t memory[];
  if (!job.template begin<Shape::kOutputs, kManyTile>()) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_output = warp % 2 * kWarpOutputs, warp_row = warp / 2 * kWarpRows;
  const int length = job.k() / segments, steps_of_segment = (length + kTileK - 1) / kTileK;
  const int steps = segments * steps_of_segment;
  const auto k_of = [&](int step) {
    return step / steps_of_segment * length + step % steps_of_segment * kTileK;
  };
  const auto end_of = [&](int step) { return (step / steps_of_segment + 1) * length; };

  const auto fetch = [&](int step) {
    if (step < steps) {
      uint8_t* stage = memory + step % kManyStages * Shape::kStageBytes;
      job.template fetch<kManyTile, kManyThreads, Shape::kGroup>(stage, threadIdx.x, k_of(step),
                                                                 end_of(step));
      copy_tile<kManyTile, kManyThreads>(reinterpret_cast<bf16*>(stage + Shape::kWeightBytes), threadIdx.x,
                                         k_of(step), end_of(step), job.any_row(),
                                         [&](int r) { return job.row(r); });
    }
    commit_copies();
  };
  for (int step = 0; step < kManyStages - 1; ++step) fetch(step);
  constexpr int kM = kWarpOutputs / 16, kN = kWarpRows / 8;
  float c[kM][kN][4] = {}, sum[kM][kN][4];
  for (int step = 0; step < steps; ++step) {
    wait_copies<kManyStages - 2>();
    __syncthreads();
    fetch(step + kManyStages - 1);
    const uint8_t* stage = memory + step % kManyStages * Shape::kStageBytes;
    const bf16* w = reinterpret_cast<const bf16*>(stage);
    const bf16* x = reinterpret_cast<const bf16*>(stage + Shape::kWeightBytes);
    const int in_segment = step % steps_of_segment;
    const int inner = (min(kTileK, length - in_segment * kTileK) + kStepK - 1) / kStepK;
    for_steps(inner, [&](int i) {
      FragmentB b[kN];
#pragma unroll
      for (int n = 0; n < kN; ++n) b[n] = load_b(x, warp_row + n * 8, i);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const FragmentA a = load_a(w, warp_output + m * 16, i);
#pragma unroll
        for (int n = 0; n < kN; ++n) multiply_add(c[m][n], a, b[n]);
      }
    });
    if (in_segment + 1 < steps_of_segment) continue;
    const bool first = step < steps_of_segment;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sum[m][n][i] = first ? c[m][n][i] : sum[m][n][i] + c[m][n][i];  // left to right
          c[m][n][i] = 0.0f;
        }
      }
    }
  }
  wait_copies<0>();
  constexpr int kOwn = kM / Job::kMatrices;  // 16-row groups of one matrix in a warp
#pragma unroll
  for (int m = 0; m < kOwn; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float value[Job::kMatrices];
#pragma unroll
        for (int j = 0; j < Job::kMatrices; ++j) value[j] = sum[m + j * kOwn][n][i];
        job.finish(warp_output / Job::kMatrices + m * 16 + lane / 4 + i / 2 * 8,
                   warp_row + n * 8 + lane % 4 * 2 + i % 2, value);
      }
    }
  }
}

// --- Weights.

template <int kMatricesOfJob>
struct DenseWeights {
  static constexpr int kMatrices = kMatricesOfJob;

  const bf16* w[kMatricesOfJob] = {};  // at the block's first column
  int64_t stride = 0;
  int outputs = 0, first_output = 0;

  template <int kTileRows, int kThreads, int kGroup>
  __device__ void fetch(uint8_t* stage, int thread, int k, int k_end) const {
    copy_tile<kTileRows, kThreads>(reinterpret_cast<bf16*>(stage), thread, k, k_end, w[0], [&](int tile_row) {
      const TileRow<kMatrices, kGroup> at(tile_row);
      const int output = first_output + at.output;
      return output < outputs ? pick(w, at.matrix) + output * stride : nullptr;
    });
  }
};

}  // namespace perigee::cuda
