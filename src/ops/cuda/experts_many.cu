// A block computes up to 160 entries of one expert by 192 rows of its weights at a time. Three warpgroups
// multiply: their weights come from memory into registers, where they become fragments; the entries' rows of
// x come, by a fourth warpgroup, into a ring of stages of one chunk of K. x lies in memory in the order in
// which the instructions take it (place_in_chunk), padded with zeros to whole chunks.
#if PERIGEE_SM90
#include "ops/cuda/activation.cuh"
#include "ops/cuda/bulk_copies.cuh"
#include "ops/cuda/experts.h"
#include "ops/cuda/experts_grouping.cuh"
#include "ops/cuda/mxfp4_fragments.cuh"
#include "ops/cuda/wgmma.cuh"

namespace perigee::cuda {
namespace {

constexpr int kMostRows = 160;   // entries of a block
constexpr int kRowStep = 32;     // they are computed in multiples of this
constexpr int kMultipliers = 3;  // warpgroups
constexpr int kThreads = (kMultipliers + 1) * kWarpgroup;
constexpr int kRing = 5;                   // stages
constexpr int kBehind = 3;                 // stages whose copies are under way
constexpr int kHalf = kMostRows * kTileK;  // values of a tile; a stage has two, side by side along K
constexpr int kMultiplierRegisters = 160, kCopierRegisters = 32;

struct Memory {
  bf16 x[kRing][2 * kHalf];
  CopyBarrier full[kRing], free[kRing];
  uint32_t row[kMostRows];       // where each entry's row of x starts, in pieces
  uint32_t row_of_y[kMostRows];  // where each entry's results go, in pieces
  alignas(16)
      bf16 turned[kMultipliers * 4][16 * 16];  // a warp's outputs on their way to memory, [entries][outputs]
};
constexpr int kStagedRow = 9;  // (gate, up) pairs of eight outputs, padded against bank conflicts
static_assert(kMultipliers * 4 * kMostRows * kStagedRow * sizeof(float2) <= sizeof(Memory::x));

struct Params {
  const ExpertAddresses* experts;
  Grouping grouping;
  const bf16* x;     // [rows, lanes, padded k]
  int64_t x_stride;  // of a row
  int choices;  // entries of a row of x, in entry order; 0: x has a row an entry, in the grouping's order
  int k, outputs, lanes;
  bf16* y;
  int64_t y_stride;  // of an entry
  ActivationParams activation;
  // What the next product takes: columns of y, cut into lanes of `y_lane`.
  int y_lane;
};

// What differs between the two products: where a fragment's two rows come from, and what becomes of sums.

// Both matrices at once: 8 outputs a warp, 32 a warpgroup. y[position] = act(gate x, up x), in the order of
// the next product.
struct GateUp {
  static constexpr int kOutputs = 32;
  static __device__ PackedRows rows(const ExpertAddresses& e, const Params& p, int first_output, int) {
    const int output =
        first_output + static_cast<int>(threadIdx.x) / 32 % 4 * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
    return PackedRows(e.gate, output, e.up, output, p.outputs, p.k, 0, p.k);
  }
  // Through the ring, which is free then: the block has one part. The code of the activation stands once.
  template <int kCount>
  static __device__ void finish(const float (&c)[kCount], const Params& p, const Tile& tile, int first_output,
                                int, Memory& memory) {
    sync_threads<1, kMultipliers * kWarpgroup>();  // all have read the last stages
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    float2* staged =
        reinterpret_cast<float2*>(memory.x) + warp * (kMostRows * kStagedRow);  // (gate, up) by entry, output
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        staged[(8 * j + lane % 4 * 2 + i) * kStagedRow + lane / 4] =
            make_float2(c[4 * j + i], c[4 * j + 2 + i]);
    }
    __syncwarp();
    // A lane takes one output of every fourth entry. Outputs i and i + 4 lie side by side in the next
    // product's order.
    const int first = first_output + warp % 4 * 8, output = first + lane % 8;
    const int lane_of_columns = first / p.y_lane, inside = first % p.y_lane + lane % 4;
    uint32_t* y = reinterpret_cast<uint32_t*>(p.y + lane_of_columns * padded_to_chunks(p.y_lane) +
                                              inside / kChunk * kChunk + place_in_chunk(inside % kChunk));
    for (int r = lane / 8; r < (tile.count + 3) / 4 * 4; r += 4) {
      const float2 v = staged[r * kStagedRow + lane % 8];
      const float own = activate(p.activation, v.x, v.y);
      const float other = __shfl_down_sync(0xFFFFFFFFu, own, 4);
      if (lane % 8 < 4 && r < tile.count && output < p.outputs)
        y[(tile.first + r) * (p.y_stride / 2)] = bf16_pair(own, other);
    }
  }
};

// 16 outputs a warp. y[entry, lane] = down x.
struct Down {
  static constexpr int kOutputs = 64;
  static __device__ PackedRows rows(const ExpertAddresses& e, const Params& p, int first_output,
                                    int lane_of_columns) {
    const int output =
        first_output + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    return PackedRows(e.down, output, e.down, output + 8, p.outputs, int64_t{p.k} * p.lanes,
                      lane_of_columns * p.k, p.k);
  }
  // Sixteen entries at a time through shared memory: 32 bytes of an entry side by side, in two pieces.
  template <int kCount>
  static __device__ void finish(const float (&c)[kCount], const Params& p, const Tile& tile, int first_output,
                                int lane_of_columns, Memory& memory) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    bf16* turned = memory.turned[warp];
    const int output = first_output + warp % 4 * 16 + lane % 2 * kPiece;
    bf16* y = p.y + int64_t{lane_of_columns} * p.outputs + output;
    // Matrices 0 … 3 of the instruction: outputs 0–7 and 8–15 of entries 0–7, then of entries 8–15.
    bf16* to = turned + (lane / 16 * 8 + lane % 8) * 16 + lane / 8 % 2 * 8;
#pragma unroll
    for (int j = 0; j < kCount / 8; ++j) {
      __syncwarp();
      store_transposed(to, bf16_pair(c[8 * j], c[8 * j + 1]), bf16_pair(c[8 * j + 2], c[8 * j + 3]),
                       bf16_pair(c[8 * j + 4], c[8 * j + 5]), bf16_pair(c[8 * j + 6], c[8 * j + 7]));
      __syncwarp();
      const int r = 16 * j + lane / 2;
      if (r >= tile.count || output >= p.outputs) continue;
      *reinterpret_cast<uint4*>(y + uint64_t{memory.row_of_y[r]} * kPiece) =
          *reinterpret_cast<const uint4*>(turned + lane * kPiece);
    }
  }

 private:
  // Four 8 × 8 matrices, transposed; thread i gives the address of row i % 8 of matrix i / 8.
  static __device__ void store_transposed(bf16* to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(to)),
        "r"(a), "r"(b), "r"(c), "r"(d)
        : "memory");
  }
};

// One chain over all chunks for kRows entries, of this warpgroup's 64 rows of weights. `next` holds their
// first chunk, and afterwards that of the rows to come. `stage` counts the stages that this block has used so
// far.
template <int kRows>
__device__ void multiply_chunks(float (&c)[kRows / 2], const PackedRows& rows, const PackedRows& rows_to_come,
                                PackedBlocks& next, int chunks, Memory& memory, int& stage) {
  const auto release = [&](int s) {
    if (threadIdx.x % kWarpgroup == 0) arrive(&memory.free[s % kRing]);
  };
#pragma unroll
  for (float& v : c) v = 0.0f;
  WordFragments fragments[2];
  for (int chunk = 0; chunk < chunks; ++chunk, ++stage) {
    const PackedBlocks p = next;
    next = chunk + 1 < chunks ? rows.load(chunk + 1) : rows_to_come.load(0);
    const BlockScale first(p.first_scale), second(p.second_scale);
    const bool large = any_large(p);
    wait_barrier(&memory.full[stage % kRing], stage / kRing % 2);
    const bf16* x = memory.x[stage % kRing];
    const uint64_t halves[2] = {operand(x), operand(x + kHalf)};
#pragma unroll
    for (int j = 0; j < kChunkWords; ++j) {
      WordFragments& w = fragments[j % 2];
      if (chunk > 0 || j >= 2) wait_products<1>();  // the products that read w before are done
      if (j == 1 && chunk > 0) release(stage - 1);
      w = decode(word_of(p.first, j), word_of(p.second, j), first, second, large);
      start_products();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int step = 2 * j + i;
        multiply_async(c, w.a[i], halves[step / 4] + step % 4 * kNextStep);
      }
      commit_products();
    }
  }
  wait_products<0>();
  pin(c);
  release(stage - 1);
}

template <typename Pass, int kRows>
__device__ void multiply_tile(const Params& p, const Tile& tile, Memory& memory) {
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int parts = static_cast<int>(gridDim.x), chunks = padded_to_chunks(p.k) / kChunk;
  const auto rows_of = [&](int part) {
    return Pass::rows(p.experts[tile.expert], p, (part * kMultipliers + group) * Pass::kOutputs,
                      static_cast<int>(blockIdx.z));
  };
  int stage = 0;
  PackedRows rows = rows_of(blockIdx.x);
  PackedBlocks next = rows.load(0);
  for (int part = blockIdx.x; part * kMultipliers * Pass::kOutputs < p.outputs; part += parts) {
    const PackedRows rows_to_come = rows_of(part + parts);
    float c[kRows / 2];
    multiply_chunks<kRows>(c, rows, rows_to_come, next, chunks, memory, stage);
    Pass::finish(c, p, tile, (part * kMultipliers + group) * Pass::kOutputs, static_cast<int>(blockIdx.z),
                 memory);
    rows = rows_to_come;
  }
}

template <typename Pass>
__device__ void copy_tile_rows(const Params& p, const Tile& tile, Memory& memory) {
  constexpr int kPieces = kChunk / kPiece, kTogether = kWarpgroup / kPieces;
  static_assert(kTogether == 8);  // all rows of a thread have the same place in the swizzle
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, piece = thread % kPieces,
            first = thread / kPieces;
  const int parts = static_cast<int>(gridDim.x), chunks = padded_to_chunks(p.k) / kChunk;
  const bf16* x = p.x + int64_t{static_cast<int>(blockIdx.z)} * padded_to_chunks(p.k) + piece * kPiece;
  const int at = piece / 8 * kHalf + tile_offset(first, piece % 8);
  int stage = 0;
  const auto hand_over = [&](int s) {
    publish_to_products();
    arrive(&memory.full[s % kRing]);
  };
  for (int part = blockIdx.x; part * kMultipliers * Pass::kOutputs < p.outputs; part += parts) {
    for (int chunk = 0; chunk < chunks; ++chunk, ++stage) {
      if (stage >= kBehind) {
        wait_copies<kBehind - 1>();
        hand_over(stage - kBehind);
      }
      if (stage >= kRing) wait_barrier(&memory.free[stage % kRing], (stage / kRing - 1) % 2);
      bf16* to = memory.x[stage % kRing] + at;
      const bf16* from = x + chunk * kChunk;
#pragma unroll 4
      for (int r = first; r < tile.count; r += kTogether, to += kTogether * kTileK)
        copy_16(to, from + uint64_t{memory.row[r]} * kPiece, true);
      commit_copies();
    }
  }
  wait_copies<0>();
  for (int s = max(0, stage - kBehind); s < stage; ++s) hand_over(s);
}

template <typename Pass>
__global__ void __launch_bounds__(kThreads, 1) many_experts_kernel(const Params p) {
  extern __shared__ __align__(1024) uint8_t bytes[];
  Memory& memory = *reinterpret_cast<Memory*>(bytes);
  if (static_cast<int>(blockIdx.y) >= p.grouping.count()) return;
  const Tile tile = p.grouping.tile(blockIdx.y);
  for (int r = threadIdx.x; r < tile.count; r += kThreads)
    memory.row[r] = (p.choices ? p.grouping.entry(tile.first + r) / p.choices : tile.first + r) *
                    static_cast<uint32_t>(p.x_stride / kPiece);
  if (!p.choices) {
    for (int r = threadIdx.x; r < tile.count; r += kThreads)
      memory.row_of_y[r] = p.grouping.entry(tile.first + r) * static_cast<uint32_t>(p.y_stride / kPiece);
  }
  if (threadIdx.x == 0) {
    for (int s = 0; s < kRing; ++s) {
      init_barrier(&memory.full[s], kWarpgroup);
      init_barrier(&memory.free[s], kMultipliers);
    }
    publish_barriers();
  }
  __syncthreads();
  const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (group == kMultipliers) {
    fewer_registers<kCopierRegisters>();
    copy_tile_rows<Pass>(p, tile, memory);
  } else {
    more_registers<kMultiplierRegisters>();
    switch ((tile.count + kRowStep - 1) / kRowStep) {
      case 1:
        multiply_tile<Pass, 32>(p, tile, memory);
        break;
      case 2:
        multiply_tile<Pass, 64>(p, tile, memory);
        break;
      case 3:
        multiply_tile<Pass, 96>(p, tile, memory);
        break;
      case 4:
        multiply_tile<Pass, 128>(p, tile, memory);
        break;
      default:
        multiply_tile<Pass, 160>(p, tile, memory);
        break;
    }
  }
}

// to[row] = from[row] in the order of place_in_chunk; a thread moves eight values. `parts` blocks a row, all
// along x, which alone may have more than 65,535.
__global__ void reorder_kernel(const bf16* from, bf16* to, int width, unsigned parts) {
  const int padded = padded_to_chunks(width),
            piece = static_cast<int>(blockIdx.x % parts * blockDim.x + threadIdx.x);
  if (piece * kPiece >= padded) return;
  const int64_t row = blockIdx.x / parts;
  const uint4 v = piece * kPiece < width
                      ? *reinterpret_cast<const uint4*>(from + row * width + piece * kPiece)
                      : make_uint4(0, 0, 0, 0);
  const int chunk = piece / 16, k = piece % 16 * kPiece;
  uint32_t* out = reinterpret_cast<uint32_t*>(to + row * padded + chunk * kChunk);
  out[place_in_chunk(k) / 2] = __byte_perm(v.x, v.z, 0x5410);
  out[place_in_chunk(k + 1) / 2] = __byte_perm(v.x, v.z, 0x7632);
  out[place_in_chunk(k + 2) / 2] = __byte_perm(v.y, v.w, 0x5410);
  out[place_in_chunk(k + 3) / 2] = __byte_perm(v.y, v.w, 0x7632);
}

template <typename Pass>
void launch(const Params& p, int parts, int batches, cudaStream_t stream) {
  static const cudaError_t raised = cudaFuncSetAttribute(
      many_experts_kernel<Pass>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Memory));
  cuda_check(raised, "cudaFuncSetAttribute");
  many_experts_kernel<Pass>
      <<<dim3(parts, p.grouping.most_tiles, batches), kThreads, sizeof(Memory), stream>>>(p);
  cuda_check(cudaGetLastError(), "launching a product of experts");
}

}  // namespace

void many_experts(const MoeExpertsArgs& a, Arena& scratch, cudaStream_t stream) {
  const int choices = a.config.experts_per_token, entries = a.rows * choices;
  const int intermediate = a.config.intermediate_size, column_lanes = a.lanes_expert ? 1 : a.lanes;
  const int k = intermediate / column_lanes, padded_in = padded_to_chunks(a.in),
            padded_k = padded_to_chunks(k);
  const Grouping grouping =
      group_by_expert(a.experts, entries, choices, a.config.num_experts, kMostRows, scratch, stream);
  bf16* z = scratch.take<bf16>(int64_t{a.rows} * padded_in);
  bf16* act = scratch.take<bf16>(int64_t{entries} * column_lanes * padded_k);
  bf16* down = scratch.take<bf16>(int64_t{entries} * column_lanes * a.in);
  constexpr int kReorderThreads = 128;
  const unsigned parts = static_cast<unsigned>((padded_in / kPiece + kReorderThreads - 1) / kReorderThreads);
  reorder_kernel<<<parts* static_cast<unsigned>(a.rows), kReorderThreads, 0, stream>>>(a.z, z, a.in, parts);
  cuda_check(cudaGetLastError(), "launching the reordering of the experts' input");
  if (padded_k != k) {
    cuda_check(cudaMemsetAsync(act, 0, static_cast<size_t>(entries) * column_lanes * padded_k * sizeof(bf16),
                               stream),
               "cudaMemsetAsync");
  }
  launch<GateUp>({.experts = a.weights.addresses,
                  .grouping = grouping,
                  .x = z,
                  .x_stride = padded_in,
                  .choices = choices,
                  .k = a.in,
                  .outputs = intermediate,
                  .lanes = 1,
                  .y = act,
                  .y_stride = int64_t{column_lanes} * padded_k,
                  .activation = a.activation,
                  .y_lane = k},
                 (intermediate + kMultipliers * GateUp::kOutputs - 1) / (kMultipliers * GateUp::kOutputs), 1,
                 stream);
  constexpr int kDownParts = 2;  // blocks that share a tile's outputs
  launch<Down>({.experts = a.weights.addresses,
                .grouping = grouping,
                .x = act,
                .x_stride = int64_t{column_lanes} * padded_k,
                .choices = 0,
                .k = k,
                .outputs = a.in,
                .lanes = column_lanes,
                .y = down,
                .y_stride = int64_t{column_lanes} * a.in,
                .activation = a.activation,
                .y_lane = 0},
               kDownParts, column_lanes, stream);
  sum_experts(a, down, stream);
}

}  // namespace perigee::cuda
#endif
