#include "ops/cuda/activation.cuh"
#include "ops/cuda/experts_grouping.cuh"
#include "ops/cuda/experts_mxfp4.h"
#include "ops/cuda/mxfp4_fragments.cuh"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/require.h"

namespace perigee::cuda {
namespace {

constexpr int kRows = 8;               // entries of a tile: the columns of an instruction
constexpr int kDownOutputs = 16;       // of a block
constexpr int kDownWarps = 16;
constexpr int kMostSharedBytes = 227 * 1024;

// One chunk of c[16, 8] += W x. x16(j) gives this thread's eight values of word j of row lane / 4.
template <bool kBoth, bool kLarge, typename X16>
__device__ void multiply_chunk(float (&c)[4], const PackedBlocks& p, const X16& x16) {
  const BlockScale first(p.first_scale), second(p.second_scale);
#pragma unroll
  for (int j = 0; j < kChunkWords; ++j) {
    const WordFragments w = decode<kBoth>(word_of(p.first, j), word_of(p.second, j), first, second, kLarge);
    const uint4 x = x16(j);
    const uint32_t b0[2] = {__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632)};
    const uint32_t b1[2] = {__byte_perm(x.y, x.w, 0x5410), __byte_perm(x.y, x.w, 0x7632)};
    mma(c, w.a[0].x, b0);
    mma(c, w.a[1].x, b1);
  }
}

// c += W x over whole rows; x16(chunk, j) as above. `ring` holds the first kAhead chunks. Without kBoth rows 8 … 15 are not
// computed.
template <bool kBoth = true, int kAhead, typename X16>
__device__ void multiply_chunks(float (&c)[4], const PackedRows& rows, PackedBlocks (&ring)[kAhead], int chunks,
                                const X16& x16) {
  for (int begin = 0; begin < chunks; begin += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int chunk = begin + i;
      if (chunk >= chunks) break;
      if (any_large(ring[i])) {
        multiply_chunk<kBoth, true>(c, ring[i], [&](int j) { return x16(chunk, j); });
      } else {
        multiply_chunk<kBoth, false>(c, ring[i], [&](int j) { return x16(chunk, j); });
      }
      ring[i] = rows.load<kBoth>(chunk + kAhead);
    }
  }
}
template <bool kBoth = true, int kAhead>
__device__ void fill(PackedBlocks (&ring)[kAhead], const PackedRows& rows) {
#pragma unroll
  for (int i = 0; i < kAhead; ++i) ring[i] = rows.load<kBoth>(i);
}

struct GateUpParams {
  const ExpertAddresses* experts;
  Grouping grouping;
  const bf16* z;  // [R, in]
  bf16* act;      // [entries, intermediate]
  ActivationParams activation;
  int choices, in, intermediate;
};

// Bytes from one row of x to the next in shared memory, and where a 16-byte piece of it lies: a warp's reads meet no
// bank conflict.
__host__ __device__ constexpr int x_stride(int in) { return padded_to_chunks(in) * 2 + 32; }
__device__ inline int x_piece(int piece) { return (piece ^ (piece >> 3 & 1)) * 16; }

// What a warp of the first product computes: a fragment of eight gate and eight up rows, or, where there are too few rows of
// x to keep the chip busy, half a fragment: four and four.
template <bool kWhole>
struct GateUp {
  static constexpr int kOutputs = kWhole ? 8 : 4;
  static __device__ PackedRows rows(const ExpertAddresses& e, int first_output, const GateUpParams& p) {
    const int group = static_cast<int>(threadIdx.x) % 32 / 4, output = first_output + group % kOutputs;
    return PackedRows(group < kOutputs ? e.gate : e.up, output, e.up, output, p.intermediate, p.in, 0, p.in);
  }
};

// a = act(gate z, up z) of a tile's entries.
template <bool kWhole, int kWarps, int kAhead>
__global__ void __launch_bounds__(32 * kWarps, kWhole ? 3 : 16) gate_up_kernel(const GateUpParams p) {
  constexpr int kOutputs = GateUp<kWhole>::kOutputs;
  extern __shared__ __align__(16) uint8_t x[];
  let_next_begin();
  if (static_cast<int>(blockIdx.y) >= p.grouping.count()) return;
  const Tile tile = p.grouping.tile(blockIdx.y);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, t = lane % 4;
  const int first_output = (static_cast<int>(blockIdx.x) * kWarps + warp) * kOutputs;
  const PackedRows rows = GateUp<kWhole>::rows(p.experts[tile.expert], first_output, p);
  PackedBlocks ring[kAhead];
  fill<kWhole>(ring, rows);
  const int pieces = padded_to_chunks(p.in) / kPiece;
  for (int r = 0; r < tile.count; ++r) {
    const bf16* row = p.z + int64_t{p.grouping.entry(tile.first + r) / p.choices} * p.in;
    for (int piece = threadIdx.x; piece < pieces; piece += 32 * kWarps) {
      const bool exists = piece * kPiece < p.in;
      copy_16(x + r * x_stride(p.in) + x_piece(piece), exists ? row + piece * kPiece : row, exists);
    }
  }
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  // Columns beyond the tile's entries repeat the last one.
  const uint8_t* of_row = x + min(group, tile.count - 1) * x_stride(p.in);
  float c[4] = {};
  multiply_chunks<kWhole>(c, rows, ring, padded_to_chunks(p.in) / kChunk, [&](int chunk, int j) {
    return *reinterpret_cast<const uint4*>(of_row + x_piece(chunk * 16 + 4 * t + j));
  });
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

// The down partials of all entries for 16 outputs → bf16, and their weighted sums in ascending expert id.
__global__ void __launch_bounds__(32 * kDownWarps, 2) down_kernel(const DownParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  bf16* down = reinterpret_cast<bf16*>(memory);  // [entries][kDownOutputs]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, t = lane % 4;
  const int first_output = static_cast<int>(blockIdx.x) * kDownOutputs, column_lane = blockIdx.y;
  const int k = p.intermediate / p.column_lanes;
  const int tiles = p.grouping.count();
  bool waits = true;  // but not with the weights of a warp's first tile
  for (int i = warp; i < tiles; i += kDownWarps) {
    const Tile tile = p.grouping.tile(i);
    const ExpertMatrix& matrix = p.experts[tile.expert].down;
    const PackedRows rows(matrix, first_output + group, matrix, first_output + group + 8, p.in, p.intermediate,
                          column_lane * k, k);
    PackedBlocks ring[3];
    fill(ring, rows);
    if (waits) wait_for_previous();
    waits = false;
    const bf16* x = p.act + column_lane * k +
                    int64_t{p.grouping.entry(tile.first + min(group, tile.count - 1))} * p.intermediate;
    float c[4] = {};
    multiply_chunks(c, rows, ring, padded_to_chunks(k) / kChunk, [&](int chunk, int j) {
      const int at = chunk * kChunk + t * kMxfp4Block + j * kPiece;
      uint4 v = make_uint4(0, 0, 0, 0);
      if (at < k) v = *reinterpret_cast<const uint4*>(x + at);
      return v;
    });
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int r = 2 * t + e % 2;
      if (r < tile.count)
        down[p.grouping.entry(tile.first + r) * kDownOutputs + group + e / 2 * 8] = float_to_bf16(c[e]);
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
void launch_gate_up(const GateUpParams& p, int rows_of_tile, cudaStream_t stream) {
  static const cudaError_t raised = cudaFuncSetAttribute(
      gate_up_kernel<kWhole, kWarps, kAhead>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostSharedBytes);
  cuda_check(raised, "cudaFuncSetAttribute");
  const int outputs = kWarps * GateUp<kWhole>::kOutputs, bytes = rows_of_tile * x_stride(p.in);
  require(bytes <= kMostSharedBytes, "moe_experts: an input width of", p.in, "at most 14,000");
  const dim3 grid((p.intermediate + outputs - 1) / outputs, p.grouping.most_tiles);
  gate_up_kernel<kWhole, kWarps, kAhead><<<grid, 32 * kWarps, bytes, stream>>>(p);
  cuda_check(cudaGetLastError(), "launching the experts' first product");
}

}  // namespace

void few_experts(const MoeExpertsArgs& a, int first_row, int rows, Arena& scratch, cudaStream_t stream) {
  const int choices = a.config.experts_per_token, entries = rows * choices;
  const int intermediate = a.config.intermediate_size, column_lanes = a.lanes_expert ? 1 : a.lanes;
  const int64_t first_entry = int64_t{first_row} * choices;
  const Grouping grouping =
      group_by_expert(a.experts + first_entry, entries, choices, a.config.num_experts, kRows, scratch, stream);
  bf16* act = scratch.take<bf16>(int64_t{entries} * intermediate);
  const GateUpParams first{.experts = a.weights.addresses,
                           .grouping = grouping,
                           .z = a.z + int64_t{first_row} * a.in,
                           .act = act,
                           .activation = a.activation,
                           .choices = choices,
                           .in = a.in,
                           .intermediate = intermediate};
  if (rows == 1) {
    launch_gate_up<false, 2, 7>(first, 1, stream);
  } else {
    launch_gate_up<true, 8, 4>(first, kRows, stream);
  }
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
  static const cudaError_t raised =
      cudaFuncSetAttribute(down_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           kMostFewEntries * kDownOutputs * static_cast<int>(sizeof(bf16)));
  cuda_check(raised, "cudaFuncSetAttribute");
  const dim3 grid((a.in + kDownOutputs - 1) / kDownOutputs, column_lanes);
  launch_overlapping(down_kernel, grid, 32 * kDownWarps, entries * kDownOutputs * sizeof(bf16), stream, second);
}

}  // namespace perigee::cuda
