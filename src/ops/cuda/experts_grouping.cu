#include "ops/cuda/experts_grouping.cuh"

#include "ops/cuda/overlap.cuh"

namespace perigee::cuda {
namespace {

constexpr int kGroupThreads = 1024;

// Inclusive sums over the block's threads, ascending.
__device__ int scan(int x, int* of_warp) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int stride = 1; stride < 32; stride *= 2) {
    const int below = __shfl_up_sync(0xFFFFFFFFu, x, stride);
    if (lane >= stride) x += below;
  }
  if (lane == 31) of_warp[warp] = x;
  __syncthreads();
  int before = 0;
  for (int w = 0; w < warp; ++w) before += of_warp[w];
  __syncthreads();
  return x + before;
}

// One block. Integer counts alone, so the order in which threads arrive changes only which place inside its
// expert an entry gets, and no result depends on that.
__global__ void __launch_bounds__(kGroupThreads)
    group_kernel(const int32_t* experts, int entries, int expert_count, int tile, Grouping g) {
  extern __shared__ int memory[];
  begin_in_turn();
  int *count = memory, *next = memory + expert_count;
  __shared__ int of_warp[kGroupThreads / 32];
  for (int e = threadIdx.x; e < expert_count; e += kGroupThreads) count[e] = 0;
  __syncthreads();
#pragma unroll 8
  for (int i = threadIdx.x; i < entries; i += kGroupThreads) atomicAdd(&count[experts[i]], 1);
  __syncthreads();
  int entries_before = 0, tiles_before = 0;
  for (int begin = 0; begin < expert_count; begin += kGroupThreads) {
    const int e = begin + static_cast<int>(threadIdx.x);
    const int mine = e < expert_count ? count[e] : 0, tiles = (mine + tile - 1) / tile;
    const int entries_to = entries_before + scan(mine, of_warp),
              tiles_to = tiles_before + scan(tiles, of_warp);
    if (e < expert_count) {
      next[e] = entries_to - mine;
      for (int t = 0; t < tiles; ++t)
        g.tiles[tiles_to - tiles + t] = {e, entries_to - mine + t * tile, min(tile, mine - t * tile)};
    }
    __shared__ int totals[2];
    if (threadIdx.x == kGroupThreads - 1) totals[0] = entries_to, totals[1] = tiles_to;
    __syncthreads();
    entries_before = totals[0], tiles_before = totals[1];
    __syncthreads();
  }
  if (threadIdx.x == 0) *g.tile_count = tiles_before;
  for (int i = tiles_before + static_cast<int>(threadIdx.x); i < g.most_tiles; i += kGroupThreads)
    g.tiles[i] = {};
#pragma unroll 8
  for (int i = threadIdx.x; i < entries; i += kGroupThreads) g.order[atomicAdd(&next[experts[i]], 1)] = i;
}

}  // namespace

Grouping group_by_expert(const int32_t* experts, int entries, int choices, int expert_count, int tile,
                         Arena& scratch, cudaStream_t stream) {
  if (entries == choices) return {.experts = experts, .most_tiles = entries};
  const int most_tiles = entries / tile + std::min(entries, expert_count);
  const Grouping grouping{.experts = experts,
                          .order = scratch.take<int>(entries),
                          .tiles = scratch.take<Tile>(most_tiles),
                          .tile_count = scratch.take<int>(1),
                          .most_tiles = most_tiles};
  launch_overlapping(
      group_kernel,
      {.grid = dim3(1), .threads = kGroupThreads, .shared_bytes = 2 * size_t(expert_count) * sizeof(int)},
      stream, experts, entries, expert_count, tile, grouping);
  return grouping;
}

}  // namespace perigee::cuda
