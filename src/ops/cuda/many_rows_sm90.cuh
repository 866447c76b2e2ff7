// The kernel of a product of many rows on Hopper: a block computes tiles of 128 rows of weights by 128 rows
// of x, one after the other. One thread has the copy engine fill a ring of stages, also those of the next
// tile while one is finished; two warpgroups multiply 64 rows of weights each. Blocks of a cluster lie in a
// square of tiles and share what they copy: a tile of x serves the blocks beside each other, a tile of
// weights those below each other. The sums are those of few_rows_kernel: the same chains, added left to
// right. Stages end where segments do: behind that the copy engine writes zeros.
//
// A Job (products.cuh) is asked for clusters(product), how many squares there are, for place(product, i),
// where the rows of x and the weights of the i-th lie (Grid, unless rows are grouped), for columns(output,
// count), what finishing takes of `count` neighbouring outputs for all rows, and for finish_four(columns,
// output, count, row, batch, value[kMatrices]). A tile of weights has 128 rows of one matrix, or 64 of each
// of two.
#pragma once

#include <algorithm>
#include <type_traits>

#include "ops/cuda/bulk_copies.cuh"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/segments.h"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/wgmma.cuh"

namespace perigee::cuda {

constexpr int kSquare = 128;                       // rows of x, and of weights, of a block
constexpr int kRing = 5;                           // stages
constexpr int kBox = kGroupRows * kTileK;          // values
constexpr int kMultipliers = 2 * kWarpgroup;       // threads
constexpr int kSquareThreads = kMultipliers + 32;  // and a warp that copies
constexpr int kPanel = 4;                // clusters side by side that go through all rows of x together
constexpr int kStagedRow = kSquare + 4;  // floats: a row of x's outputs, padded against bank conflicts

struct SquareStage {
  bf16 w[2 * kBox], x[2 * kBox];
};
struct SquareMemory {
  SquareStage stages[kRing];
  float staged[kSquare * kStagedRow];
  CopyBarrier full[kRing], free[kRing];
};

// A cluster's first tile, counted in clusters across the outputs and in rows of x; rows of x from end_row on
// are not its own.
struct ClusterPlace {
  int across, first_row, end_row, w_batch, x_batch;
};

template <typename Job>
struct SquareProduct {
  static constexpr int kOutputs = kSquare / Job::kMatrices;  // of a block
  CUtensorMap w[Job::kMatrices], x;
  Job job;
  int k = 0, segments = 1, outputs = 0, rows = 0, batches = 1;
  int clusters_across = 0, clusters_down = 0, rows_of_cluster = 0;
};

// All rows times all outputs of all batches: kPanel clusters side by side go through all rows, so that what
// runs at one time shares weights and x in L2.
struct Grid {
  template <typename Product>
  __device__ int clusters(const Product& p) const {
    return p.clusters_across * p.clusters_down * p.batches;
  }
  template <typename Product>
  __device__ ClusterPlace place(const Product& p, int i) const {
    const int of_batch = p.clusters_across * p.clusters_down, batch = i / of_batch, cluster = i % of_batch;
    const int panel = cluster / (kPanel * p.clusters_down), inside = cluster % (kPanel * p.clusters_down);
    const int width = min(kPanel, p.clusters_across - panel * kPanel);
    return {panel * kPanel + inside % width, inside / width * p.rows_of_cluster, p.rows, batch, batch};
  }
};

// A Job's Columns, when finishing takes nothing of outputs.
struct NoColumns {
  struct Columns {};
  __device__ Columns columns(int, int) const { return {}; }
};

// The first `count` of four neighbouring values.
__device__ inline void store_four(float* to, int count, const float4& x) {
  if (count == 4 && reinterpret_cast<uintptr_t>(to) % sizeof(float4) == 0) {
    *reinterpret_cast<float4*>(to) = x;
    return;
  }
  const float values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i < count) to[i] = values[i];
}
__device__ inline void store_four(bf16* to, int count, const float4& x) {
  const uint2 pairs{bf16_pair(x.x, x.y), bf16_pair(x.z, x.w)};
  if (count == 4 && reinterpret_cast<uintptr_t>(to) % sizeof(uint2) == 0) {
    *reinterpret_cast<uint2*>(to) = pairs;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i < count) to[i] = static_cast<bf16>((i < 2 ? pairs.x : pairs.y) >> i % 2 * 16);
}

template <typename Job, int kAcross, int kDown>
__global__ void __launch_bounds__(kSquareThreads, 1)
    square_kernel(const __grid_constant__ SquareProduct<Job> p) {
  using Product = SquareProduct<Job>;
  constexpr int kBlocks = kAcross * kDown;
  extern __shared__ __align__(1024) uint8_t memory[];
  SquareMemory& shared = *reinterpret_cast<SquareMemory*>(memory);
  const int rank = static_cast<int>(rank_in_cluster()), across = rank % kAcross, down = rank / kAcross;
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

  const int count = p.job.clusters(p);
  const auto each_place = [&](const auto& use) {
    const int stride = static_cast<int>(gridDim.x) / kBlocks;
    int i = static_cast<int>(blockIdx.x) / kBlocks;
    ClusterPlace next = i < count ? p.job.place(p, i) : ClusterPlace{};
    for (; i < count; i += stride) {
      const ClusterPlace place = next;
      if (i + stride < count) next = p.job.place(p, i + stride);  // read well before it is needed
      use(place);
    }
  };
  const auto first_row_of = [&](const ClusterPlace& place) { return place.first_row + down * kSquare; };
  const auto first_output_of = [&](const ClusterPlace& place) {
    return (place.across * kAcross + across) * Product::kOutputs;
  };
  // Of 64 rows of x, that have rows of the place: 0 to 2.
  const auto boxes_of = [&](const ClusterPlace& place) {
    return (min(max(place.end_row - first_row_of(place), 0), kSquare) + kGroupRows - 1) / kGroupRows;
  };

  const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (group == kMultipliers / kWarpgroup) {
    if (threadIdx.x == kMultipliers) {
      uint16_t beside = 0, below = 0;  // blocks that share this one's rows of x, its weights
      for (int i = 0; i < kAcross; ++i) beside |= 1 << (down * kAcross + i);
      for (int i = 0; i < kDown; ++i) below |= 1 << (i * kAcross + across);
      int filled = 0;  // stages, of all places
      each_place([&](const ClusterPlace& place) {
        const int first_output = first_output_of(place), first_row = first_row_of(place),
                  boxes = boxes_of(place);
        for (int step = 0; step < p.segments * steps_of_segment; ++step, ++filled) {
          const int s = filled % kRing;
          if (filled >= kRing) wait_barrier(&shared.free[s], (filled / kRing - 1) % 2);
          arrive_expecting(&shared.full[s], (2 + boxes) * kBox * int{sizeof(bf16)});
          const int segment = step / steps_of_segment, k = step % steps_of_segment * kTileK;
          for (int box = down; box < 2; box += kDown) {
            const int row = Job::kMatrices == 2 ? first_output : first_output + box * kGroupRows;
            copy_box(shared.stages[s].w + box * kBox, p.w[Job::kMatrices == 2 ? box : 0], k, segment, row,
                     place.w_batch, &shared.full[s], below);
          }
          for (int box = across; box < boxes; box += kAcross)
            copy_box(shared.stages[s].x + box * kBox, p.x, k, segment, first_row + box * kGroupRows,
                     place.x_batch, &shared.full[s], beside);
        }
      });
    }
  } else {
    const auto release = [&](int step) {  // to every block that copies into this one's stages
      if (threadIdx.x % kWarpgroup != 0) return;
      CopyBarrier* barrier = &shared.free[step % kRing];
      for (int i = 0; i < kAcross; ++i) arrive_at(barrier, down * kAcross + i);
      for (int i = 0; i < kDown; ++i)
        if (i != down) arrive_at(barrier, i * kAcross + across);
    };
    int step = 0;  // of all places
    const auto multiply = [&](const ClusterPlace& place, auto boxes) {
      constexpr int kValues = boxes * kGroupRows / 2;  // of a thread
      float c[kValues], sum[kValues];
#pragma unroll
      for (float& v : c) v = 0.0f;
      for (int segment = 0; segment < p.segments; ++segment) {
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
        for (int i = 0; i < kValues; ++i) {
          sum[i] = segment == 0 ? c[i] : sum[i] + c[i];  // left to right
          c[i] = 0.0f;
        }
      }
      // Through shared memory, so that neighbouring threads write neighbouring outputs.
      sync_threads<1, kMultipliers>();  // the place before has been written
      const int lane = threadIdx.x % 32, column = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
      for (int i = 0; i < kValues; ++i)
        shared.staged[(i / 4 * 8 + lane % 4 * 2 + i % 2) * kStagedRow + column + i / 2 % 2 * 8] = sum[i];
      sync_threads<1, kMultipliers>();
      constexpr int kFours = Product::kOutputs / 4;  // of a row
      const int first_output = first_output_of(place), first_row = first_row_of(place);
      const int rows = min(place.end_row - first_row, int{boxes} * kGroupRows);
      const int o = static_cast<int>(threadIdx.x) % kFours * 4, exist = min(p.outputs - first_output - o, 4);
      if (exist <= 0) return;
      const auto columns = p.job.columns(first_output + o, exist);
      for (int r = static_cast<int>(threadIdx.x) / kFours; r < rows; r += kMultipliers / kFours) {
        float4 value[Job::kMatrices];
#pragma unroll
        for (int m = 0; m < Job::kMatrices; ++m) {
          value[m] =
              *reinterpret_cast<const float4*>(shared.staged + r * kStagedRow + m * Product::kOutputs + o);
        }
        p.job.finish_four(columns, first_output + o, exist, first_row + r, place.x_batch, value);
      }
    };
    each_place([&](const ClusterPlace& place) {
      const int boxes = boxes_of(place);
      if (boxes == 2) {
        multiply(place, std::integral_constant<int, 2>());
      } else if (boxes == 1) {
        multiply(place, std::integral_constant<int, 1>());
      } else {  // weights come all the same
        for (int i = 0; i < p.segments * steps_of_segment; ++i, ++step) {
          wait_barrier(&shared.full[step % kRing], step / kRing % 2);
          release(step);
        }
      }
    });
  }
  __syncwarp();
  sync_cluster();  // nobody leaves while others may still write to it
}

// Of `count` squares, as many clusters as run at once.
template <typename Job, int kAcross, int kDown>
void launch_square(const SquareProduct<Job>& p, int count, cudaStream_t stream) {
  static constexpr auto kKernel = square_kernel<Job, kAcross, kDown>;
  constexpr unsigned kBlocks = kAcross * kDown;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kBlocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kBlocks);
  config.blockDim = dim3(kSquareThreads);
  config.dynamicSmemBytes = sizeof(SquareMemory);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  static const int at_once = [&] {
    cuda_check(
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(SquareMemory)),
        "cudaFuncSetAttribute");
    int clusters = 0;
    cuda_check(cudaOccupancyMaxActiveClusters(&clusters, kKernel, &config), "cudaOccupancyMaxActiveClusters");
    return clusters;
  }();
  config.gridDim = dim3(kBlocks * static_cast<unsigned>(std::min(count, at_once)));
  cuda_check(cudaLaunchKernelEx(&config, kKernel, p), "launching a product of many rows");
}

// Any number of rows and outputs of a Job that is a Grid; w and x are tile_map's of [outputs, k] and [rows,
// k].
template <typename Job>
void multiply_many(SquareProduct<Job> p, cudaStream_t stream) {
  const auto parts = [](int count, int size) { return (count + size - 1) / size; };
  const int down = p.rows <= kSquare ? 1 : 2;
  p.segments = segments_of(p.k);
  p.rows_of_cluster = down * kSquare;
  p.clusters_across = parts(p.outputs, 2 * SquareProduct<Job>::kOutputs);
  p.clusters_down = parts(p.rows, p.rows_of_cluster);
  const int count = p.clusters_across * p.clusters_down * p.batches;
  if (down == 1) {
    launch_square<Job, 2, 1>(p, count, stream);
  } else {
    launch_square<Job, 2, 2>(p, count, stream);
  }
}

// Rows of x in tiles of at most kSquare rows, of which the Job knows the places: at most `tiles`.
template <typename Job>
void multiply_grouped(SquareProduct<Job> p, int tiles, cudaStream_t stream) {
  constexpr int kOutputs = 2 * SquareProduct<Job>::kOutputs;
  p.segments = segments_of(p.k);
  p.clusters_across = (p.outputs + kOutputs - 1) / kOutputs;
  launch_square<Job, 2, 1>(p, p.clusters_across * tiles, stream);
}

}  // namespace perigee::cuda
