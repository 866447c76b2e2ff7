// moe_experts. The (row, choice) entries of a step are ordered by expert on the device; products then run
// over tiles of entries of one expert, as many blocks as there could be tiles, those beyond their number
// ending at once.
#include <variant>

#include "ops/cuda/activation.cuh"
#include "ops/cuda/backend.h"
#include "ops/cuda/launch_products.cuh"
#include "ops/cuda/mxfp4_weights.cuh"

namespace perigee::cuda {
namespace {

constexpr int kThreads = 256, kGroupThreads = 1024;

// A tile of entries of one expert: order[first, first + count).
struct Tile {
  int expert, first, count;
};

struct Grouping {
  int* order;       // [entries] entries, ascending inside an expert
  Tile* tiles;      // [most tiles]
  int* tile_count;  // [1]
};

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
  int *count = memory, *next = memory + expert_count;
  __shared__ int of_warp[kGroupThreads / 32];
  for (int e = threadIdx.x; e < expert_count; e += kGroupThreads) count[e] = 0;
  __syncthreads();
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
  for (int i = threadIdx.x; i < entries; i += kGroupThreads) g.order[atomicAdd(&next[experts[i]], 1)] = i;
}

// a = act(gate z, up z) of every entry.
template <typename Weights>
struct GateUpJob : Weights {
  const ExpertAddresses* experts = nullptr;
  Grouping grouping{};
  const bf16* z = nullptr;
  bf16* act = nullptr;  // [entries, intermediate]
  ActivationParams activation;
  int choices = 0, in = 0;
  Tile tile{};

  template <int kOutputs, int kRows>
  __device__ bool begin() {
    if (static_cast<int>(blockIdx.y) >= *grouping.tile_count) return false;
    tile = grouping.tiles[blockIdx.y];
    this->set(experts[tile.expert].gate, 0, 0);
    this->set(experts[tile.expert].up, 1, 0);
    this->first_output = static_cast<int>(blockIdx.x) * kOutputs;
    return true;
  }
  __device__ int k() const { return in; }
  __device__ const bf16* row(int r) const {
    return r < tile.count ? z + int64_t{grouping.order[tile.first + r] / choices} * in : nullptr;
  }
  __device__ const bf16* any_row() const { return z; }
  __device__ void finish(int output, int r, const float (&value)[2]) const {
    output += this->first_output;
    if (output >= this->outputs || r >= tile.count) return;
    const int64_t entry = grouping.order[tile.first + r];
    act[entry * this->outputs + output] = float_to_bf16(activate(activation, value[0], value[1]));
  }
};

// The down partial of every entry and lane → bf16.
template <typename Weights>
struct DownJob : Weights {
  const ExpertAddresses* experts = nullptr;
  Grouping grouping{};
  const bf16* act = nullptr;
  bf16* down = nullptr;  // [entries, lanes, in]
  int intermediate = 0, lanes = 0;
  Tile tile{};

  template <int kOutputs, int kRows>
  __device__ bool begin() {
    if (static_cast<int>(blockIdx.y) >= *grouping.tile_count) return false;
    tile = grouping.tiles[blockIdx.y];
    this->set(experts[tile.expert].down, 0, static_cast<int>(blockIdx.z) * k());
    this->first_output = static_cast<int>(blockIdx.x) * kOutputs;
    return true;
  }
  __device__ int k() const { return intermediate / lanes; }
  __device__ const bf16* row(int r) const {
    if (r >= tile.count) return nullptr;
    return act + int64_t{grouping.order[tile.first + r]} * intermediate + static_cast<int>(blockIdx.z) * k();
  }
  __device__ const bf16* any_row() const { return act; }
  __device__ void finish(int output, int r, const float (&value)[1]) const {
    output += this->first_output;
    if (output >= this->outputs || r >= tile.count) return;
    const int64_t entry = grouping.order[tile.first + r];
    down[(entry * lanes + blockIdx.z) * this->outputs + output] = float_to_bf16(value[0]);
  }
};

struct SumParams {
  const bf16* down;  // [entries, down_lanes, in]
  const int32_t* experts;
  const float* weight;
  float* partial;  // [lanes, R, in]
  int rows, choices, in, down_lanes;
  int experts_per_lane;  // lanes are blocks of expert ids; 0: of columns
};

// partial = Σ weight · down in ascending expert id.
__global__ void sum_kernel(const SumParams p) {
  const int d = blockIdx.x * kThreads + threadIdx.x, row = blockIdx.y, lane = blockIdx.z;
  if (d >= p.in) return;
  float y = 0.0f;
  for (int i = 0; i < p.choices; ++i) {
    const int64_t entry = int64_t{row} * p.choices + i;
    if (p.experts_per_lane && p.experts[entry] / p.experts_per_lane != lane) continue;
    const int64_t at = (entry * p.down_lanes + (p.experts_per_lane ? 0 : lane)) * p.in + d;
    y = __fmaf_rn(p.weight[entry], bf16_to_float(p.down[at]), y);
  }
  p.partial[(int64_t{lane} * p.rows + row) * p.in + d] = y;
}

template <template <int> typename Weights>
void run_experts(const MoeExpertsArgs& a, Arena& scratch, cudaStream_t stream) {
  const int choices = a.config.experts_per_token, entries = a.rows * choices, count = a.config.num_experts;
  const int intermediate = a.config.intermediate_size, lanes = a.lanes_expert ? 1 : a.lanes;
  // Tiles as large as an expert's share of the entries, if they fell evenly.
  const int tile = row_tile(std::max(1, entries / count));
  const int most_tiles = entries / tile + std::min(entries, count);
  const Grouping grouping{.order = scratch.take<int>(entries),
                          .tiles = scratch.take<Tile>(most_tiles),
                          .tile_count = scratch.take<int>(1)};
  bf16* act = scratch.take<bf16>(int64_t{entries} * intermediate);
  bf16* down = scratch.take<bf16>(int64_t{entries} * lanes * a.in);
  group_kernel<<<1, kGroupThreads, 2 * count * sizeof(int), stream>>>(a.experts, entries, count, tile,
                                                                      grouping);
  cuda_check(cudaGetLastError(), "launching the grouping of experts");

  GateUpJob<Weights<2>> first;
  first.outputs = intermediate;
  first.stride = a.in;
  first.experts = a.weights.addresses;
  first.grouping = grouping;
  first.z = a.z;
  first.act = act;
  first.activation = a.activation;
  first.choices = choices;
  first.in = a.in;
  launch_product(first, {.outputs = intermediate, .k = a.in, .row_tile = tile, .tiles = most_tiles}, stream);
  DownJob<Weights<1>> second;
  second.outputs = a.in;
  second.stride = intermediate;
  second.experts = a.weights.addresses;
  second.grouping = grouping;
  second.act = act;
  second.down = down;
  second.intermediate = intermediate;
  second.lanes = lanes;
  launch_product(
      second,
      {.outputs = a.in, .k = intermediate / lanes, .row_tile = tile, .tiles = most_tiles, .batches = lanes},
      stream);
  const SumParams sum{.down = down,
                      .experts = a.experts,
                      .weight = a.expert_weight,
                      .partial = a.partial,
                      .rows = a.rows,
                      .choices = choices,
                      .in = a.in,
                      .down_lanes = lanes,
                      .experts_per_lane = a.lanes_expert ? count / a.lanes : 0};
  sum_kernel<<<dim3((a.in + kThreads - 1) / kThreads, a.rows, a.lanes), kThreads, 0, stream>>>(sum);
  cuda_check(cudaGetLastError(), "launching the sum over experts");
}

}  // namespace

void CudaBackend::moe_experts(const MoeExpertsArgs& a) {
  if (a.rows == 0) return;
  const Arena::Scope scope(scratch_);
  if (std::holds_alternative<Linear>(a.weights.experts[0].gate)) {
    run_experts<DenseExpert>(a, scratch_, stream());
  } else {
    run_experts<Mxfp4Expert>(a, scratch_, stream());
  }
}

}  // namespace perigee::cuda
