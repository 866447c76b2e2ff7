// The kernel of a product of many rows on Hopper: a block computes 128 rows of weights by 128 rows of x. One
// thread has the copy engine fill a ring of stages, two warpgroups multiply 64 rows of weights each. Blocks
// of a cluster lie in a square of tiles and share what they copy: a tile of x serves the blocks beside each
// other, a tile of weights those below each other. The sums are those of few_rows_kernel: the same chains,
// added left to right. Stages end where segments do: behind that the copy engine writes zeros.
//
// A Job (products.cuh) is asked for place(product, cluster), where the rows of x and the weights of a cluster
// lie (Grid::place, unless rows are grouped), and for finish_at(output, row, batch, value[kMatrices]). A tile
// of weights has 128 rows of one matrix, or 64 of each of two.
#pragma once

#include <algorithm>

#include "ops/cuda/bulk_copies.cuh"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/segments.h"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/wgmma.cuh"

namespace perigee::cuda {

constexpr int kSquare = 128;                       // rows of x, and of weights, of a block
constexpr int kRing = 6;                           // stages
constexpr int kBox = kGroupRows * kTileK;          // values
constexpr int kMultipliers = 2 * kWarpgroup;       // threads
constexpr int kSquareThreads = kMultipliers + 32;  // and a warp that copies
constexpr int kPanel = 4;                // clusters side by side that go through all rows of x together
constexpr int kStagedRow = kSquare + 4;  // floats: a row of x's outputs, padded against bank conflicts

struct SquareStage {
  bf16 w[2 * kBox], x[2 * kBox];
};
struct SquareMemory {
  SquareStage stages[kRing];  // afterwards float[kSquare][kStagedRow]
  CopyBarrier full[kRing], free[kRing];
};
static_assert(sizeof(SquareStage) * kRing >= sizeof(float) * kSquare * kStagedRow);

// A cluster's first tile, counted in clusters across the outputs and in rows of x; rows of x from end_row on
// are not its own. Nothing to do when end_row is 0.
struct ClusterPlace {
  int across, first_row, end_row, w_batch, x_batch;
};

template <typename Job>
struct SquareProduct {
  static constexpr int kOutputs = kSquare / Job::kMatrices;  // of a block
  CUtensorMap w[Job::kMatrices], x;
  Job job;
  int k = 0, segments = 1, outputs = 0, rows = 0;
  int clusters_across = 0, clusters_down = 0, rows_of_cluster = 0;
};

// All rows times all outputs, batches along blockIdx.z: kPanel clusters side by side go through all rows, so
// that what runs at one time shares weights and x in L2.
struct Grid {
  template <typename Product>
  __device__ ClusterPlace place(const Product& p, int cluster) const {
    const int panel = cluster / (kPanel * p.clusters_down), inside = cluster % (kPanel * p.clusters_down);
    const int width = min(kPanel, p.clusters_across - panel * kPanel), batch = static_cast<int>(blockIdx.z);
    return {panel * kPanel + inside % width, inside / width * p.rows_of_cluster, p.rows, batch, batch};
  }
};

template <typename Job, int kAcross, int kDown>
__global__ void __cluster_dims__(kAcross* kDown) __launch_bounds__(kSquareThreads, 1)
    square_kernel(const __grid_constant__ SquareProduct<Job> p) {
  using Product = SquareProduct<Job>;
  extern __shared__ __align__(1024) uint8_t memory[];
  SquareMemory& shared = *reinterpret_cast<SquareMemory*>(memory);
  const int rank = static_cast<int>(rank_in_cluster()), across = rank % kAcross, down = rank / kAcross;
  const ClusterPlace place = p.job.place(p, static_cast<int>(blockIdx.x) / (kAcross * kDown));
  if (place.end_row == 0) return;
  const int first_output = (place.across * kAcross + across) * Product::kOutputs;
  const int first_row = place.first_row + down * kSquare;
  const int length = p.k / p.segments, steps_of_segment = (length + kTileK - 1) / kTileK;

  if (threadIdx.x == 0) {
    for (int s = 0; s < kRing; ++s) {
      init_barrier(&shared.full[s], 1);
      init_barrier(&shared.free[s],
                   2 * (kAcross + kDown - 1));  // the warpgroups of all blocks this one copies to
    }
    publish_barriers();
  }
  sync_cluster();

  const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (group == kMultipliers / kWarpgroup) {
    if (threadIdx.x == kMultipliers) {
      uint16_t beside = 0, below = 0;  // blocks that share this one's rows of x, its weights
      for (int i = 0; i < kAcross; ++i) beside |= 1 << (down * kAcross + i);
      for (int i = 0; i < kDown; ++i) below |= 1 << (i * kAcross + across);
      for (int step = 0; step < p.segments * steps_of_segment; ++step) {
        const int s = step % kRing;
        if (step >= kRing) wait_barrier(&shared.free[s], (step / kRing - 1) % 2);
        arrive_expecting(&shared.full[s], sizeof(SquareStage));
        const int segment = step / steps_of_segment, k = step % steps_of_segment * kTileK;
        for (int box = down; box < 2; box += kDown) {
          const int row = Job::kMatrices == 2 ? first_output : first_output + box * kGroupRows;
          copy_box(shared.stages[s].w + box * kBox, p.w[Job::kMatrices == 2 ? box : 0], k, segment, row,
                   place.w_batch, &shared.full[s], below);
        }
        for (int box = across; box < 2; box += kAcross)
          copy_box(shared.stages[s].x + box * kBox, p.x, k, segment, first_row + box * kGroupRows,
                   place.x_batch, &shared.full[s], beside);
      }
    }
  } else {
    const auto release = [&](int step) {  // to every block that copies into this one's stages
      if (threadIdx.x % kWarpgroup != 0) return;
      CopyBarrier* barrier = &shared.free[step % kRing];
      for (int i = 0; i < kAcross; ++i) arrive_at(barrier, down * kAcross + i);
      for (int i = 0; i < kDown; ++i)
        if (i != down) arrive_at(barrier, i * kAcross + across);
    };
    float c[kSquare / 2], sum[kSquare / 2];
#pragma unroll
    for (float& v : c) v = 0.0f;
    for (int segment = 0, step = 0; segment < p.segments; ++segment) {
      for (int i = 0; i < steps_of_segment; ++i, ++step) {
        const SquareStage& stage = shared.stages[step % kRing];
        wait_barrier(&shared.full[step % kRing], step / kRing % 2);
        const uint64_t a = operand(stage.w + group * kBox), b = operand(stage.x);
        start_products();
#pragma unroll
        for (int j = 0; j < kTileK / kStepK; ++j) multiply_async(c, a + j * kNextStep, b + j * kNextStep);
        commit_products();
        if (i > 0) {
          wait_products<1>();
          release(step - 1);
        }
      }
      wait_products<0>();
      pin(c);
      release(step - 1);
#pragma unroll
      for (int i = 0; i < kSquare / 2; ++i) {
        sum[i] = segment == 0 ? c[i] : sum[i] + c[i];  // left to right
        c[i] = 0.0f;
      }
    }
    // Through shared memory, so that neighbouring threads write neighbouring outputs.
    sync_threads<1, kMultipliers>();
    float* staged = reinterpret_cast<float*>(memory);
    const int lane = threadIdx.x % 32, output = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < kSquare / 2; ++i)
      staged[(i / 4 * 8 + lane % 4 * 2 + i % 2) * kStagedRow + output + i / 2 % 2 * 8] = sum[i];
    sync_threads<1, kMultipliers>();
    for (int at = threadIdx.x; at < kSquare * Product::kOutputs; at += kMultipliers) {
      const int o = at % Product::kOutputs, r = at / Product::kOutputs;
      if (first_output + o >= p.outputs || first_row + r >= place.end_row) continue;
      float value[Job::kMatrices];
      for (int m = 0; m < Job::kMatrices; ++m) value[m] = staged[r * kStagedRow + m * Product::kOutputs + o];
      p.job.finish_at(first_output + o, first_row + r, place.x_batch, value);
    }
  }
  __syncwarp();
  sync_cluster();  // nobody leaves while others may still write to it
}

template <typename Job, int kAcross, int kDown>
void launch_square(const SquareProduct<Job>& p, dim3 clusters, cudaStream_t stream) {
  static const cudaError_t raised = cudaFuncSetAttribute(
      square_kernel<Job, kAcross, kDown>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(SquareMemory));
  cuda_check(raised, "cudaFuncSetAttribute");
  clusters.x *= kAcross * kDown;
  square_kernel<Job, kAcross, kDown><<<clusters, kSquareThreads, sizeof(SquareMemory), stream>>>(p);
  cuda_check(cudaGetLastError(), "launching a product of many rows");
}

// Any number of rows and outputs of a Job that is a Grid; w and x are tile_map's of [outputs, k] and [rows,
// k].
template <typename Job>
void multiply_many(SquareProduct<Job> p, int batches, cudaStream_t stream) {
  const auto parts = [](int count, int size) { return (count + size - 1) / size; };
  const int down = p.rows <= kSquare ? 1 : 2;
  p.segments = segments_of(p.k);
  p.rows_of_cluster = down * kSquare;
  p.clusters_across = parts(p.outputs, 2 * SquareProduct<Job>::kOutputs);
  p.clusters_down = parts(p.rows, p.rows_of_cluster);
  const dim3 clusters(p.clusters_across * p.clusters_down, 1, batches);
  if (down == 1) {
    launch_square<Job, 2, 1>(p, clusters, stream);
  } else {
    launch_square<Job, 2, 2>(p, clusters, stream);
  }
}

// Rows of x in tiles of at most kSquare rows, of which the Job knows the places: at most `tiles` along
// blockIdx.y.
template <typename Job>
void multiply_grouped(SquareProduct<Job> p, int tiles, cudaStream_t stream) {
  p.segments = segments_of(p.k);
  constexpr int kOutputs = 2 * SquareProduct<Job>::kOutputs;
  launch_square<Job, 2, 1>(p, dim3((p.outputs + kOutputs - 1) / kOutputs, tiles), stream);
}

}  // namespace perigee::cuda
