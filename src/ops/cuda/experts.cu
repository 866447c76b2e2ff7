// moe_experts. The (row, choice) entries of a step are ordered by expert on the device; products then run
// over tiles of entries of one expert, as many blocks as there could be tiles, those beyond their number
// ending at once. Here: with bf16 weights.
#include <variant>

#include "formats/mxfp4.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/backend.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/experts_grouping.cuh"
#include "ops/cuda/launch_products.cuh"
#include "ops/cuda/require.h"
#include "ops/expert_addresses.h"
#if PERIGEE_SM90
#include "ops/cuda/many_rows_sm90.cuh"
#endif

namespace perigee::cuda {
namespace {

constexpr int kThreads = 256;

// a = act(gate z, up z) of every entry.
struct GateUpJob : DenseWeights<2> {
  static constexpr bool kWeightsKnown = false;
  const ExpertAddresses* experts = nullptr;
  Grouping grouping{};
  const bf16* z = nullptr;
  bf16* act = nullptr;  // [entries, intermediate]
  ActivationParams activation;
  int choices = 0, in = 0;
  Tile tile{};

  template <int kOutputs, int kRows>
  __device__ bool begin() {
    if (static_cast<int>(blockIdx.y) >= grouping.count()) return false;
    tile = grouping.tile(blockIdx.y);
    w[0] = static_cast<const bf16*>(experts[tile.expert].gate.values);
    w[1] = static_cast<const bf16*>(experts[tile.expert].up.values);
    first_output = static_cast<int>(blockIdx.x) * kOutputs;
    return true;
  }
  __device__ int k() const { return in; }
  __device__ const bf16* row(int r) const {
    return r < tile.count ? z + int64_t{grouping.entry(tile.first + r) / choices} * in : nullptr;
  }
  __device__ const bf16* any_row() const { return z; }
  __device__ void finish(int output, int r, const float (&value)[2]) const {
    output += first_output;
    if (output >= outputs || r >= tile.count) return;
    const int64_t entry = grouping.entry(tile.first + r);
    act[entry * outputs + output] = float_to_bf16(activate(activation, value[0], value[1]));
  }
};

// The down partial of every entry and lane → bf16.
struct DownJob : DenseWeights<1> {
  static constexpr bool kWeightsKnown = false;
  const ExpertAddresses* experts = nullptr;
  Grouping grouping{};
  const bf16* act = nullptr;
  bf16* down = nullptr;  // [entries, lanes, in]
  int intermediate = 0, lanes = 0;
  Tile tile{};

  template <int kOutputs, int kRows>
  __device__ bool begin() {
    if (static_cast<int>(blockIdx.y) >= grouping.count()) return false;
    tile = grouping.tile(blockIdx.y);
    w[0] = static_cast<const bf16*>(experts[tile.expert].down.values) + static_cast<int>(blockIdx.z) * k();
    first_output = static_cast<int>(blockIdx.x) * kOutputs;
    return true;
  }
  __device__ int k() const { return intermediate / lanes; }
  __device__ const bf16* row(int r) const {
    if (r >= tile.count) return nullptr;
    return act + int64_t{grouping.entry(tile.first + r)} * intermediate + static_cast<int>(blockIdx.z) * k();
  }
  __device__ const bf16* any_row() const { return act; }
  __device__ void finish(int output, int r, const float (&value)[1]) const {
    output += first_output;
    if (output >= outputs || r >= tile.count) return;
    const int64_t entry = grouping.entry(tile.first + r);
    down[(entry * lanes + blockIdx.z) * outputs + output] = float_to_bf16(value[0]);
  }
};

#if PERIGEE_SM90
// Many rows: products of many_rows_sm90.cuh over tiles of one expert, whose rows of x are brought side by
// side first.
struct GroupedJob : NoColumns {
  Grouping grouping{};
  template <typename Product>
  __device__ int clusters(const Product& p) const {
    return grouping.count() * p.clusters_across;
  }
  template <typename Product>
  __device__ ClusterPlace place(const Product& p, int i) const {
    const Tile tile = grouping.tile(i / p.clusters_across);
    return {i % p.clusters_across, tile.first, tile.first + tile.count, tile.expert, 0};
  }
};
struct ManyGateUpJob : GroupedJob {
  static constexpr int kMatrices = 2;
  bf16* act = nullptr;  // [entries, intermediate], in the grouping's order
  ActivationParams activation;
  int intermediate = 0;
  __device__ void finish_four(Columns, int output, int count, int position, int,
                              const float4 (&value)[2]) const {
    store_four(act + int64_t{position} * intermediate + output, count,
               activate(activation, value[0], value[1]));
  }
};
struct ManyDownJob : GroupedJob {
  static constexpr int kMatrices = 1;
  bf16* down = nullptr;  // [entries, in]
  int in = 0;
  __device__ void finish_four(Columns, int output, int count, int position, int,
                              const float4 (&value)[1]) const {
    store_four(down + int64_t{grouping.entry(position)} * in + output, count, value[0]);
  }
};

// to[position] = z of the position's row, 16 bytes a thread.
__global__ void bring_together_kernel(Grouping grouping, const uint4* z, uint4* to, int choices, int pieces) {
  const int piece = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (piece >= pieces) return;
  const int64_t position = blockIdx.x;
  to[position * pieces + piece] =
      z[int64_t{grouping.entry(static_cast<int>(position)) / choices} * pieces + piece];
}

// Values from one expert's matrix to the next one's, when all are equally far apart; 0 otherwise.
int64_t expert_stride(const MoeWeights& w, ExpertLinear MoeWeights::Expert::* matrix) {
  const auto at = [&](size_t e) { return std::get<Linear>(w.experts[e].*matrix).weight; };
  const int64_t stride = w.experts.size() > 1 ? at(1) - at(0) : 8;
  for (size_t e = 1; e < w.experts.size(); ++e)
    if (at(e) - at(e - 1) != stride) return 0;
  return stride > 0 && stride % 8 == 0 ? stride : 0;
}

// False when the weights do not lie as the copy engine needs them.
bool many_dense_experts(const MoeExpertsArgs& a, const Grouping& grouping, bf16* act, bf16* down,
                        Arena& scratch, cudaStream_t stream) {
  const int64_t gate = expert_stride(a.weights, &MoeWeights::Expert::gate),
                up = expert_stride(a.weights, &MoeWeights::Expert::up),
                back = expert_stride(a.weights, &MoeWeights::Expert::down);
  if (gate == 0 || up == 0 || back == 0) return false;
  const int choices = a.config.experts_per_token, entries = a.rows * choices, count = a.config.num_experts;
  const int intermediate = a.config.intermediate_size, pieces = a.in / kPiece;
  bf16* x = scratch.take<bf16>(int64_t{entries} * a.in);
  bring_together_kernel<<<dim3(entries, (pieces + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      grouping, reinterpret_cast<const uint4*>(a.z), reinterpret_cast<uint4*>(x), choices, pieces);
  cuda_check(cudaGetLastError(), "launching the gathering of the experts' input");
  const auto map = [&](const ExpertLinear& first, int64_t stride) {
    const Linear& w = std::get<Linear>(first);
    return tile_map(w.weight, w.in, w.out, count, w.in, stride);
  };
  const MoeWeights::Expert& first = a.weights.experts[0];
  ManyGateUpJob gate_up;
  gate_up.grouping = grouping;
  gate_up.act = act;
  gate_up.activation = a.activation;
  gate_up.intermediate = intermediate;
  multiply_grouped<ManyGateUpJob>({.w = {map(first.gate, gate), map(first.up, up)},
                                   .x = tile_map(x, a.in, entries, 1, a.in, 0),
                                   .job = gate_up,
                                   .k = a.in,
                                   .outputs = intermediate},
                                  grouping.most_tiles, stream);
  ManyDownJob second;
  second.grouping = grouping;
  second.down = down;
  second.in = a.in;
  multiply_grouped<ManyDownJob>({.w = {map(first.down, back)},
                                 .x = tile_map(act, intermediate, entries, 1, intermediate, 0),
                                 .job = second,
                                 .k = intermediate,
                                 .outputs = a.in},
                                grouping.most_tiles, stream);
  return true;
}
#endif

void dense_experts(const MoeExpertsArgs& a, Arena& scratch, cudaStream_t stream) {
  const int choices = a.config.experts_per_token, entries = a.rows * choices, count = a.config.num_experts;
  const int intermediate = a.config.intermediate_size, lanes = a.lanes_expert ? 1 : a.lanes;
  // Tiles as large as an expert's share of the entries, if they fell evenly.
  const int tile = row_tile(std::max(1, entries / count));
  const Grouping grouping = group_by_expert(a.experts, entries, choices, count, tile, scratch, stream);
  bf16* act = scratch.take<bf16>(int64_t{entries} * intermediate);
  bf16* down = scratch.take<bf16>(int64_t{entries} * lanes * a.in);

#if PERIGEE_SM90
  if (tile == kManyTile && lanes == 1 && many_dense_experts(a, grouping, act, down, scratch, stream)) {
    sum_experts(a, down, stream);
    return;
  }
#endif
  GateUpJob first;
  first.outputs = intermediate;
  first.stride = a.in;
  first.experts = a.weights.addresses;
  first.grouping = grouping;
  first.z = a.z;
  first.act = act;
  first.activation = a.activation;
  first.choices = choices;
  first.in = a.in;
  launch_product(first, {.outputs = intermediate, .k = a.in, .row_tile = tile, .tiles = grouping.most_tiles},
                 stream);
  DownJob second;
  second.outputs = a.in;
  second.stride = intermediate;
  second.experts = a.weights.addresses;
  second.grouping = grouping;
  second.act = act;
  second.down = down;
  second.intermediate = intermediate;
  second.lanes = lanes;
  launch_product(second,
                 {.outputs = a.in,
                  .k = intermediate / lanes,
                  .row_tile = tile,
                  .tiles = grouping.most_tiles,
                  .batches = lanes},
                 stream);
  sum_experts(a, down, stream);
}

}  // namespace

void CudaBackend::moe_experts(const MoeExpertsArgs& a) {
  if (a.rows == 0) return;
  const Arena::Scope scope(scratch_);
  if (std::holds_alternative<Linear>(a.weights.experts[0].gate)) {
    dense_experts(a, scratch_, stream());
    return;
  }
  const int choices = a.config.experts_per_token, slice = kMostFewEntries / choices;
  require(slice > 0, "moe_experts: experts per token of", choices, "at most 2,048");
  const int columns = a.config.intermediate_size / (a.lanes_expert ? 1 : a.lanes);
  require(a.in % kMxfp4Block == 0, "moe_experts: an MXFP4 input width of", a.in, "multiples of 32");
  require(columns % kMxfp4Block == 0, "moe_experts: MXFP4 columns of a lane of", columns, "multiples of 32");
#if PERIGEE_SM90
  constexpr int kManyOfExpert = 16;  // rows, on average
  if (a.rows > slice || int64_t{a.rows} * choices > int64_t{kManyOfExpert} * a.config.num_experts) {
    many_experts(a, scratch_, stream());
    return;
  }
#endif
  for (int first = 0; first < a.rows; first += slice) {
    const Arena::Scope of_slice(scratch_);
    few_experts(a, first, std::min(slice, a.rows - first), scratch_, stream());
  }
}

}  // namespace perigee::cuda
