#include <type_traits>

#include "ops/cuda/activation.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/experts_grouping.cuh"
#include "ops/cuda/mxfp4_fragments.cuh"
#include "ops/cuda/overlap.cuh"

namespace perigee::cuda {
namespace {

constexpr int kColumns = 8;       // entries of a tile: the columns of an instruction
constexpr int kDownOutputs = 16;  // of a block
constexpr int kDownWarps = 8;

// One chunk of this thread's values of x: block t of row lane / 4, eight values a word.
struct Values {
  uint4 words[kChunkWords];
};
// A row of x in memory; values from `k` on are zeros.
struct Row {
  const bf16* x;  // at block t of the first chunk
  int k;          // from there on
  __device__ Row(const bf16* row, int length) {
    const int begin = static_cast<int>(threadIdx.x) % 4 * kMxfp4Block;
    x = row + begin, k = length - begin;
  }
  __device__ Values load(int chunk) const {
    Values v;
    const bool exists = chunk * kChunk < k;
#pragma unroll
    for (int j = 0; j < kChunkWords; ++j) {
      v.words[j] = make_uint4(0, 0, 0, 0);
      if (exists) v.words[j] = *reinterpret_cast<const uint4*>(x + chunk * kChunk + j * kPiece);
    }
    return v;
  }
};

// One chunk of c[16, 8] += W x.
template <bool kBoth, bool kLarge>
__device__ void multiply_chunk(float (&c)[4], const PackedBlocks& p, const Values& x) {
  const BlockScale first(p.first_scale), second(p.second_scale);
#pragma unroll
  for (int j = 0; j < kChunkWords; ++j) {
    const WordFragments w = decode<kBoth>(word_of(p.first, j), word_of(p.second, j), first, second, kLarge);
    const uint4 v = x.words[j];
    const uint32_t b0[2] = {__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632)};
    const uint32_t b1[2] = {__byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632)};
    mma(c, w.a[0].x, b0);
    mma(c, w.a[1].x, b1);
  }
}

// What a warp multiplies: 16 rows of weights (8 without kBoth) by the rows of x of its columns.
struct Operands {
  PackedRows w;
  Row x;
};

// The chunks of products that follow each other, requested ahead of their use: kAhead of weights, one of x.
// The number of chunks of a product is a multiple of kAhead.
template <bool kBoth, int kAhead>
struct Stream {
  PackedBlocks w[kAhead];
  Values x;

  __device__ explicit Stream(const Operands& first) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) w[i] = first.w.load<kBoth>(i);
  }
  __device__ void request_x(const Operands& first) { x = first.x.load(0); }

  // c += W x of `now`; requests the beginning of `next`.
  __device__ void multiply(float (&c)[4], const Operands& now, const Operands& next, int chunks) {
    for (int begin = 0; begin < chunks; begin += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int chunk = begin + i;
        const Values values = x;
        x = chunk + 1 < chunks ? now.x.load(chunk + 1) : next.x.load(0);
        if (any_large(w[i])) {
          multiply_chunk<kBoth, true>(c, w[i], values);
        } else {
          multiply_chunk<kBoth, false>(c, w[i], values);
        }
        const int ahead = chunk + kAhead;
        w[i] = ahead < chunks ? now.w.load<kBoth>(ahead) : next.w.load<kBoth>(ahead - chunks);
      }
    }
  }
};

struct GateUpParams {
  const ExpertAddresses* experts;
  Grouping grouping;
  const bf16* z;  // [R, in]
  bf16* act;      // [entries, intermediate]
  ActivationParams activation;
  int choices, in, intermediate;
};

// a = act(gate z, up z) of a tile's entries. A warp takes eight gate and eight up rows, or, where there are
// too few rows of x to keep the chip busy (not kWhole), four and four.
template <bool kWhole, int kWarps, int kAhead>
__global__ void __launch_bounds__(32 * kWarps, kWhole ? 5 : 8) gate_up_kernel(const GateUpParams p) {
  constexpr int kOutputs = kWhole ? 8 : 4;
  begin_in_turn();
  const Tile tile = p.grouping.tile(blockIdx.y);
  if (tile.count == 0) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, t = lane % 4;
  const int first_output = (static_cast<int>(blockIdx.x) * kWarps + warp) * kOutputs;
  const ExpertAddresses& e = p.experts[tile.expert];
  const int row_of_weights = first_output + group % kOutputs;
  // Columns beyond the tile's entries repeat the last one.
  const int row = p.grouping.entry(tile.first + min(group, tile.count - 1)) / p.choices;
  const Operands operands{PackedRows(group < kOutputs ? e.gate : e.up, row_of_weights, e.up, row_of_weights,
                                     p.intermediate, p.in, 0, p.in),
                          Row(p.z + int64_t{row} * p.in, p.in)};
  Stream<kWhole, kAhead> stream(operands);
  stream.request_x(operands);
  float c[4] = {};
  stream.multiply(c, operands, operands, padded_to_chunks(p.in) / kChunk);
  const int output = first_output + group;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float up = kWhole ? c[i + 2] : __shfl_down_sync(0xFFFFFFFFu, c[i], 16);
    const int r = 2 * t + i;
    if (r >= tile.count || group >= kOutputs || output >= p.intermediate) continue;
    p.act[int64_t{p.grouping.entry(tile.first + r)} * p.intermediate + output] =
        float_to_bf16(activate(p.activation, c[i], up));
  }
}

struct DownParams {
  const ExpertAddresses* experts;
  Grouping grouping;
  const bf16* act;      // [entries, intermediate]
  const float* weight;  // [entries]
  float* partial;       // [lanes, partial rows, in]
  int rows, partial_rows, choices, in, intermediate;
  int column_lanes;      // lanes that are blocks of columns; blockIdx.y is one of them
  int experts_per_lane;  // lanes that are blocks of expert ids; 0: of columns
  int lanes;
};

// The down partials of all entries for 16 outputs → bf16, and their weighted sums in ascending expert id. The
// weights of a warp's first tile do not wait for the first product.
template <int kAhead>
__global__ void __launch_bounds__(32 * kDownWarps, 2) down_kernel(const DownParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  bf16* down = reinterpret_cast<bf16*>(memory);  // [entries][kDownOutputs]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, t = lane % 4;
  const int first_output = static_cast<int>(blockIdx.x) * kDownOutputs, column_lane = blockIdx.y;
  const int k = p.intermediate / p.column_lanes, tiles = p.grouping.count();
  const auto operands_of = [&](const Tile& tile) {
    const ExpertMatrix& m = p.experts[tile.expert].down;
    const int output = first_output + group,
              entry = p.grouping.entry(tile.first + min(group, tile.count - 1));
    return Operands{PackedRows(m, output, m, output + 8, p.in, p.intermediate, column_lane * k, k),
                    Row(p.act + int64_t{entry} * p.intermediate + column_lane * k, k)};
  };
  if (warp < tiles) {
    Tile tile = p.grouping.tile(warp), next = p.grouping.tile(min(warp + kDownWarps, tiles - 1));
    Operands operands = operands_of(tile);
    Stream<true, kAhead> stream(operands);
    begin_in_turn();
    stream.request_x(operands);
    for (int i = warp; i < tiles; i += kDownWarps) {
      const Operands operands_of_next = operands_of(next);
      const Tile after = p.grouping.tile(min(i + 2 * kDownWarps, tiles - 1));
      float c[4] = {};
      stream.multiply(c, operands, operands_of_next, padded_to_chunks(k) / kChunk);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = 2 * t + e % 2;
        if (r < tile.count)
          down[p.grouping.entry(tile.first + r) * kDownOutputs + group + e / 2 * 8] = float_to_bf16(c[e]);
      }
      operands = operands_of_next, tile = next, next = after;
    }
  }
  __syncthreads();
  const int sums = p.experts_per_lane ? p.lanes : 1;
  for (int at = threadIdx.x; at < sums * p.rows * kDownOutputs; at += blockDim.x) {
    const int o = at % kDownOutputs, row = at / kDownOutputs % p.rows, sum = at / kDownOutputs / p.rows;
    if (first_output + o >= p.in) continue;
    float y = 0.0f;
    for (int i = 0; i < p.choices; ++i) {
      const int entry = row * p.choices + i;
      if (p.experts_per_lane && p.grouping.experts[entry] / p.experts_per_lane != sum) continue;
      y = __fmaf_rn(p.weight[entry], bf16_to_float(down[entry * kDownOutputs + o]), y);
    }
    p.partial[(int64_t{column_lane + sum} * p.partial_rows + row) * p.in + first_output + o] = y;
  }
}

template <bool kWhole, int kWarps, int kAhead>
void launch_gate_up(const GateUpParams& p, cudaStream_t stream) {
  constexpr int kOutputs = kWarps * (kWhole ? 8 : 4);
  const dim3 grid((p.intermediate + kOutputs - 1) / kOutputs, p.grouping.most_tiles);
  launch_overlapping(gate_up_kernel<kWhole, kWarps, kAhead>, {.grid = grid, .threads = 32 * kWarps}, stream,
                     p);
}

template <int kAhead>
void launch_down(const DownParams& p, cudaStream_t stream) {
  static const cudaError_t raised =
      cudaFuncSetAttribute(down_kernel<kAhead>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           kMostFewEntries * kDownOutputs * static_cast<int>(sizeof(bf16)));
  cuda_check(raised, "cudaFuncSetAttribute");
  const dim3 grid((p.in + kDownOutputs - 1) / kDownOutputs, p.column_lanes);
  launch_overlapping(down_kernel<kAhead>,
                     {.grid = grid,
                      .threads = 32 * kDownWarps,
                      .shared_bytes = size_t(p.rows) * p.choices * kDownOutputs * sizeof(bf16)},
                     stream, p);
}

// The deepest pipeline that divides the chunks of a product.
template <typename Launch>
void with_depth(int k, const Launch& launch) {
  const int chunks = padded_to_chunks(k) / kChunk;
  if (chunks % 4 == 0) {
    launch(std::integral_constant<int, 4>());
  } else if (chunks % 3 == 0) {
    launch(std::integral_constant<int, 3>());
  } else if (chunks % 2 == 0) {
    launch(std::integral_constant<int, 2>());
  } else {
    launch(std::integral_constant<int, 1>());
  }
}

}  // namespace

void few_experts(const MoeExpertsArgs& a, int first_row, int rows, Arena& scratch, cudaStream_t stream) {
  const int choices = a.config.experts_per_token, entries = rows * choices;
  const int intermediate = a.config.intermediate_size, column_lanes = a.lanes_expert ? 1 : a.lanes;
  const int64_t first_entry = int64_t{first_row} * choices;
  const Grouping grouping = group_by_expert(a.experts + first_entry, entries, choices, a.config.num_experts,
                                            kColumns, scratch, stream);
  bf16* act = scratch.take<bf16>(int64_t{entries} * intermediate);
  const GateUpParams first{.experts = a.weights.addresses,
                           .grouping = grouping,
                           .z = a.z + int64_t{first_row} * a.in,
                           .act = act,
                           .activation = a.activation,
                           .choices = choices,
                           .in = a.in,
                           .intermediate = intermediate};
  with_depth(a.in, [&](auto depth) {
    if (rows == 1) {
      launch_gate_up<false, 2, depth>(first, stream);
    } else {
      launch_gate_up<true, 4, depth>(first, stream);
    }
  });
  const DownParams second{.experts = a.weights.addresses,
                          .grouping = grouping,
                          .act = act,
                          .weight = a.expert_weight + first_entry,
                          .partial = a.partial + int64_t{first_row} * a.in,
                          .rows = rows,
                          .partial_rows = a.rows,
                          .choices = choices,
                          .in = a.in,
                          .intermediate = intermediate,
                          .column_lanes = column_lanes,
                          .experts_per_lane = a.lanes_expert ? a.config.num_experts / a.lanes : 0,
                          .lanes = a.lanes};
  with_depth(intermediate / column_lanes, [&](auto depth) { launch_down<depth>(second, stream); });
}

}  // namespace perigee::cuda
