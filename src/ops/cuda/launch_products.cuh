// The launch of a product's kernels.
#pragma once

#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/products.cuh"

namespace perigee::cuda {

// Rows of a block: as few as hold them all, or a large tile. Never changes a bit.
inline int row_tile(int rows) { return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 64 ? 32 : kManyTile; }

constexpr int kMostSharedBytes = 227 * 1024;  // of a block

struct Launch {
  int outputs = 0, k = 0;
  int row_tile = 8;  // 8, 16, 32 or kManyTile
  int rows = 0;      // blocks along y: one a row tile …
  int tiles = 0;     // … unless their number is given
  int batches = 1;   // blocks along z
};

template <int kRows, typename Job>
void launch_few_rows(const Job& job, const Launch& l, cudaStream_t stream) {
  using Shape = FewRows<Job, kRows>;
  const int segments = segments_of(l.k), steps = (l.k / segments + kTileK - 1) / kTileK;
  const int stages = std::min(Shape::kStages, steps);  // that are used
  const int bytes = segments * stages * Shape::kStageBytes;
  static const cudaError_t raised = cudaFuncSetAttribute(
      few_rows_kernel<Job, kRows>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostSharedBytes);
  cuda_check(raised, "cudaFuncSetAttribute");
  const dim3 grid((l.outputs + Shape::kOutputs - 1) / Shape::kOutputs,
                  l.tiles ? l.tiles : (l.rows + kRows - 1) / kRows, l.batches);
  launch_overlapping(few_rows_kernel<Job, kRows>,
                     {.grid = grid, .threads = 32 * segments, .shared_bytes = size_t(bytes)}, stream, job,
                     segments, stages);
}

template <typename Job>
void launch_product(const Job& job, const Launch& l, cudaStream_t stream) {
  if (l.row_tile == 8) {
    launch_few_rows<8>(job, l, stream);
  } else if (l.row_tile == 16) {
    launch_few_rows<16>(job, l, stream);
  } else if (l.row_tile == 32) {
    launch_few_rows<32>(job, l, stream);
  } else {
    using Shape = ManyRows<Job>;
    static const cudaError_t raised = cudaFuncSetAttribute(
        many_rows_kernel<Job>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostSharedBytes);
    cuda_check(raised, "cudaFuncSetAttribute");
    const dim3 grid((l.outputs + Shape::kOutputs - 1) / Shape::kOutputs,
                    l.tiles ? l.tiles : (l.rows + kManyTile - 1) / kManyTile, l.batches);
    many_rows_kernel<Job><<<grid, kManyThreads, Shape::kBytes, stream>>>(job, segments_of(l.k));
  }
  cuda_check(cudaGetLastError(), "launching a product");
}

}  // namespace perigee::cuda
