// sparse_attend and dense_attend: on Hopper by attend_few_sm90.cu and attend_sm90.cu, and for any GPU since
// sm_80 in three launches. There a walk (one row, 16 heads, one attention lane, one segment) is shared by
// kBlocks blocks: logits and their maxima, parallel over the tiles of keys; weights p̂ and what a tile
// rescales by, once the maxima of the tiles before are known; values, parallel over slices of the latent's
// dimensions, each block walking all tiles in order. The same sums everywhere.
#include "ops/cuda/attend.cuh"

#include <algorithm>
#include <cmath>

#include "ops/cuda/backend.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/latent_pieces.cuh"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/require.h"
#include "ops/elementary.h"

namespace perigee::cuda {
namespace {

constexpr int kHeads = kWalkHeads;
constexpr int kBlocks = kLatentRank / kSlice;    // share a walk
constexpr int kWarps = kAttendThreads / 32;      // each 8 keys of a tile's logits, 2 heads, 8 of a slice
constexpr int kStages = 6;                       // of the values' raw bytes
constexpr int kTableTiles = 32;                  // whose records' addresses are at hand
constexpr int kLogitStride = kKeyTile + 4;       // floats: heads lie in different banks
constexpr int64_t kMostWorkspace = 256ll << 20;  // bytes a launch may take; more rows are more launches
constexpr unsigned kFoldThreads = kLatentRank / 4;
static_assert(kHeads == 2 * kWarps && kKeyTile == 8 * kWarps && kSlice == 8 * kWarps);

// What a tile does to a walk: the running max with it, 2^(max before − max), and its Σp.
struct alignas(16) Step {
  float max, rescale, sum, unused;
};

// Of every walk of a launch; `tiles` is the most that one can have.
struct Workspace {
  const uint8_t** record;  // [walks, tiles, 64] null: no key
  float2* logit;    // [walks, tiles, 16 heads, 32] of keys 16·(i/8) + i%8 and 8 later, scaled by nothing
  float* tile_max;  // [walks, tiles, 16]
  Step* step;       // [walks, tiles, 16]
  uint4* weight;    // [walks, tiles, 4, 32] p̂ as the first operand of four matrix instructions
};

struct Parameters : AttendParameters {
  Workspace work;
};

// The block's walk.
struct BlockWalk : Walk {
  int first_head, heads;  // heads that exist
  int64_t index;          // in the workspace

  __device__ explicit BlockWalk(const Parameters& a)
      : Walk(a, a.first_row + static_cast<int>(blockIdx.x) / kBlocks / a.walks() / a.groups,
             static_cast<int>(blockIdx.x) / kBlocks % a.walks()),
        first_head(static_cast<int>(blockIdx.x) / kBlocks / a.walks() % a.groups * kHeads),
        heads(min(kHeads, a.heads - first_head)),
        index(blockIdx.x / kBlocks) {}
};

template <LatentFormat kFormat>
struct Shared {
  // While logits are made:
  static constexpr int kQuery = 0;
  static constexpr int kTile = kQuery + kHeads * kLatentStride * 2;
  static constexpr int kLogit = kTile + kKeyTile * kLatentStride * 2;
  static constexpr int kOwn = kLogit + kHeads * kLogitStride * 4;
  static constexpr int kLogitBytes = kOwn + kAttendThreads * 8;
  // While values are added:
  static constexpr int kWeight = LatentSlice<kFormat>::kStageBytes;  // in a stage: p̂, then the steps
  static constexpr int kStep = kWeight + 4 * 32 * 16;
  static constexpr int kStageBytes = kStep + kHeads * int{sizeof(Step)};
  static constexpr int kSlices = kStages * kStageBytes;
  static constexpr int kTable = kSlices + 2 * kKeyTile * kSliceStride * 2;
  static constexpr int kValueBytes = kTable + kTableTiles * kKeyTile * 8;
  static_assert(kTile % 16 == 0 && kLogit % 16 == 0 && kOwn % 16 == 0 && kStep % 16 == 0 &&
                kStageBytes % 16 == 0 && kSlices % 16 == 0 && kTable % 16 == 0);
};

// Lane i of a warp holds keys 16·(i/8) + i%8 and 8 later of a tile.
__device__ int first_key_of_lane() { return static_cast<int>(threadIdx.x) % 32 / 8 * 16 + threadIdx.x % 8; }

// Part one: the logits of tiles rank, rank + kBlocks, …; each thread keeps two keys of two heads a tile.
template <LatentFormat kFormat>
__device__ void make_logits(const Parameters& a, const BlockWalk& walk, int rank, uint8_t* memory) {
  using S = Shared<kFormat>;
  bf16* query = reinterpret_cast<bf16*>(memory + S::kQuery);
  bf16* tile = reinterpret_cast<bf16*>(memory + S::kTile);
  float* logit = reinterpret_cast<float*>(memory + S::kLogit);
  const uint8_t** own = reinterpret_cast<const uint8_t**>(memory + S::kOwn);  // of four tiles
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int own_tiles = (walk.tiles - rank + kBlocks - 1) / kBlocks;
  if (own_tiles <= 0) return;

  constexpr int kPieces = kLatentDim / 8;
  for (int at = thread; at < kHeads * kPieces; at += kAttendThreads) {
    const int head = at / kPieces, piece = at % kPieces;
    uint4 x{0, 0, 0, 0};
    if (head < walk.heads) {
      x = reinterpret_cast<const uint4*>(a.query + (int64_t{walk.row} * a.heads + walk.first_head + head) *
                                                       kLatentDim)[piece];
    }
    *reinterpret_cast<uint4*>(query + head * kLatentStride + piece * 8) = x;
  }

  constexpr int kAtOnce = kAttendThreads / kKeyTile;
  WholeLatents<kFormat> raw;
  for (int i = 0; i < own_tiles; ++i) {
    const int t = rank + i * kBlocks;
    if (i % kAtOnce == 0) {
      __syncthreads();  // the tiles before have been loaded
      const int u = t + thread / kKeyTile * kBlocks, key = u * kKeyTile + thread % kKeyTile;
      const uint8_t* record = nullptr;
      if (key < walk.keys) {
        const int p = walk.position(key);
        record = a.pages.latent(walk.sequence, p / kPageTokens) + p % kPageTokens * latent_bytes(kFormat);
      }
      own[thread] = record;
      if (u < walk.tiles) a.work.record[(walk.index * a.tiles + u) * kKeyTile + thread % kKeyTile] = record;
      __syncthreads();
      raw.load(own);
    }
    raw.store(tile, a.pages.latent_scale);
    __syncthreads();
    if (i + 1 < own_tiles && (i + 1) % kAtOnce != 0) raw.load(own + (i + 1) % kAtOnce * kKeyTile);

    float c[4] = {};
    const bf16* keys = tile + warp * 8 * kLatentStride;
#pragma unroll 6
    for (int d = 0; d < kLatentDim; d += 2 * kStepK) {
      FragmentB key[2];
      load_second(key, keys + d, kLatentStride);
      multiply_add(c, load_first(query + d, kLatentStride), key[0]);
      multiply_add(c, load_first(query + d + kStepK, kLatentStride), key[1]);
    }
    const int g = lane / 4, column = warp * 8 + lane % 4 * 2;
    *reinterpret_cast<float2*>(logit + g * kLogitStride + column) = {c[0], c[1]};
    *reinterpret_cast<float2*>(logit + (g + 8) * kLogitStride + column) = {c[2], c[3]};
    __syncthreads();
    const int key = first_key_of_lane(), left = walk.keys - t * kKeyTile;
#pragma unroll
    for (int head = 2 * warp; head < 2 * warp + 2; ++head) {
      const float minus_infinity = -__uint_as_float(0x7F800000u);
      const float x = logit[head * kLogitStride + key], y = logit[head * kLogitStride + key + 8];
      const int64_t at = (walk.index * a.tiles + t) * kHeads + head;
      a.work.logit[at * 32 + lane] = {x, y};
      const float top = warp_max(fmaxf(key < left ? x : minus_infinity, key + 8 < left ? y : minus_infinity));
      if (lane == 0) a.work.tile_max[at] = top;
    }
  }
}

// Part two: p = 2^(q·k · scale − max so far) of the same tiles, by the threads that kept the logits.
__device__ void make_weights(const Parameters& a, const BlockWalk& walk, int rank) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, key = first_key_of_lane();
  float before[2];  // max of the tiles before, not scaled
  int seen = 0;     // tiles in it
  before[0] = before[1] = -__uint_as_float(0x7F800000u);
  for (int t = rank; t < walk.tiles; t += kBlocks) {
    const int left = walk.keys - t * kKeyTile;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int head = 2 * warp + i;
      const float* tile_max = a.work.tile_max + walk.index * a.tiles * kHeads + head;
      const int u = seen + lane;  // kBlocks at most since the last time
      before[i] =
          fmaxf(before[i], warp_max(u < t ? __ldcg(tile_max + u * kHeads) : -__uint_as_float(0x7F800000u)));
      const float max_before = before[i] * a.scale;
      const float max = fmaxf(max_before, __ldcg(tile_max + t * kHeads) * a.scale);
      const int64_t at = (walk.index * a.tiles + t) * kHeads + head;
      const float2 s = a.work.logit[at * 32 + lane];
      const float p = key < left ? exp2_decay(__fmaf_rn(s.x, a.scale, -max)) : 0.0f;
      const float q = key + 8 < left ? exp2_decay(__fmaf_rn(s.y, a.scale, -max)) : 0.0f;
      float sum = p + q;
#pragma unroll
      for (int stride : {1, 8, 16, 2, 4}) sum += __shfl_xor_sync(kAllLanes, sum, stride);
      if (lane == 0) a.work.step[at] = {max, exp2_decay(max_before - max), sum, 0.0f};
      // As FragmentA: thread 4·(head % 8) + column/2, register head/8 (+ 2 for columns 8 later).
      bf16* weight = reinterpret_cast<bf16*>(
          a.work.weight + ((walk.index * a.tiles + t) * 4 + lane / 8) * 32 + head % 8 * 4 + lane % 8 / 2);
      weight[head / 8 * 2 + lane % 2] = float_to_bf16(p);
      weight[head / 8 * 2 + 4 + lane % 2] = float_to_bf16(q);
    }
    seen = t;
  }
}

// Part three: dimensions [64·rank, 64·rank + 64) of the value over all tiles.
template <LatentFormat kFormat>
__device__ void add_values(const Parameters& a, const BlockWalk& walk, int rank, uint8_t* memory) {
  using S = Shared<kFormat>;
  using Slice = LatentSlice<kFormat>;
  const uint8_t** table = reinterpret_cast<const uint8_t**>(memory + S::kTable);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4;

  const auto stage_of = [&](int t) { return memory + t % kStages * S::kStageBytes; };
  const auto fetch = [&](int t) {
    if (t < walk.tiles) {
      if (t % kTableTiles == 0) {  // every thread has used the addresses before
        const uint8_t* const* record = a.work.record + (walk.index * a.tiles + t) * kKeyTile;
        const int count = min(kTableTiles, walk.tiles - t) * kKeyTile;
        for (int i = thread; i < count; i += kAttendThreads) {
          table[i] = reinterpret_cast<const uint8_t*>(
              __ldcg(reinterpret_cast<const unsigned long long*>(record) + i));
        }
        __syncthreads();
      }
      uint8_t* stage = stage_of(t);
      Slice::fetch(stage, table + t % kTableTiles * kKeyTile, rank, a.query);
      const int64_t tile = walk.index * a.tiles + t;
      if (thread < 4 * 32)
        copy_16(stage + S::kWeight + thread * 16, a.work.weight + tile * 4 * 32 + thread, true);
      if (thread >= kAttendThreads - kHeads) {
        const int head = thread - (kAttendThreads - kHeads);
        copy_16(stage + S::kStep + head * int{sizeof(Step)}, a.work.step + tile * kHeads + head, true);
      }
    }
    commit_copies();
  };
  for (int t = 0; t < kStages - 1; ++t) fetch(t);

  float z[4] = {};
  float sum_low = 0.0f, sum_high = 0.0f, max_low = 0.0f, max_high = 0.0f;  // of heads g and g + 8
  for (int t = 0; t < walk.tiles; ++t) {
    wait_copies<kStages - 2>();
    const uint8_t* stage = stage_of(t);
    bf16* slice = reinterpret_cast<bf16*>(memory + S::kSlices) + t % 2 * kKeyTile * kSliceStride;
    Slice::decode(stage, a.pages.latent_scale, slice);
    __syncthreads();  // the tile is there, and every warp is done with the one before
    fetch(t + kStages - 1);
    const Step* step = reinterpret_cast<const Step*>(stage + S::kStep);
    const Step low = step[g], high = step[g + 8];
    sum_low = __fmaf_rn(sum_low, low.rescale, low.sum);
    sum_high = __fmaf_rn(sum_high, high.rescale, high.sum);
    max_low = low.max, max_high = high.max;
    z[0] *= low.rescale, z[1] *= low.rescale, z[2] *= high.rescale, z[3] *= high.rescale;
    const uint4* weight = reinterpret_cast<const uint4*>(stage + S::kWeight);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      FragmentB value[2];
      load_second_transposed(value, slice + half * 32 * kSliceStride + warp * 8, kSliceStride);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 p = weight[(2 * half + i) * 32 + lane];
        multiply_add(z, FragmentA{{p.x, p.y, p.z, p.w}}, value[i]);
      }
    }
  }

  const int dim = rank * kSlice + warp * 8 + lane % 4 * 2;
  if (a.lanes * a.segments == 1) {
    bf16* out = a.out + (int64_t{walk.row} * a.heads + walk.first_head) * kLatentRank + dim;
    const auto write = [&](int head, float x, float y, float sum) {
      if (head >= walk.heads) return;
      const float inverse = __frcp_rn(sum);
      *reinterpret_cast<uint32_t*>(out + head * kLatentRank) = bf16_pair(x * inverse, y * inverse);
    };
    write(g, z[0], z[1], sum_low);
    write(g + 8, z[2], z[3], sum_high);
    return;
  }
  float* value = a.value + walk.index * kHeads * kLatentRank + dim;
  *reinterpret_cast<float2*>(value + g * kLatentRank) = {z[0], z[1]};
  *reinterpret_cast<float2*>(value + (g + 8) * kLatentRank) = {z[2], z[3]};
  if (rank == 0 && warp == 0 && lane % 4 == 0) {
    a.sums[walk.index * kHeads + g] = {max_low, sum_low};
    a.sums[walk.index * kHeads + g + 8] = {max_high, sum_high};
  }
}

template <LatentFormat kFormat>
__global__ void __launch_bounds__(kAttendThreads) attend_logits_kernel(const Parameters a) {
  extern __shared__ __align__(16) uint8_t memory[];
  make_logits<kFormat>(a, BlockWalk(a), blockIdx.x % kBlocks, memory);
}
__global__ void __launch_bounds__(kAttendThreads) attend_weights_kernel(const Parameters a) {
  make_weights(a, BlockWalk(a), blockIdx.x % kBlocks);
}
template <LatentFormat kFormat>
__global__ void __launch_bounds__(kAttendThreads) attend_values_kernel(const Parameters a) {
  extern __shared__ __align__(16) uint8_t memory[];
  add_values<kFormat>(a, BlockWalk(a), blockIdx.x % kBlocks, memory);
}

// A row and head: its walks folded left to right, segments first, then lanes. Walks without a key are left
// out.
__global__ void __launch_bounds__(kFoldThreads) attend_fold_kernel(const AttendParameters a) {
  begin_in_turn();
  struct State {
    float max, sum, z[4];
    __device__ void fold(const State& right) {
      if (right.sum == 0.0f) return;
      if (sum == 0.0f) {
        *this = right;
        return;
      }
      const float m = fmaxf(max, right.max), x = exp2_decay(max - m), y = exp2_decay(right.max - m);
      max = m;
      sum = __fmaf_rn(sum, x, right.sum * y);
#pragma unroll
      for (int d = 0; d < 4; ++d) z[d] = __fmaf_rn(z[d], x, right.z[d] * y);
    }
  };
  const int row = blockIdx.x / a.heads, head = blockIdx.x % a.heads, walks = a.walks();
  const int64_t first = (int64_t{row} * a.groups + head / kHeads) * walks;
  State total{};
  for (int lane = 0; lane < a.lanes; ++lane) {
    State of_lane{};
    for (int s = 0; s < a.segments; ++s) {
      const int64_t at = (first + lane * a.segments + s) * kHeads + head % kHeads;
      const float2 sums = a.sums[at];
      if (sums.y == 0.0f) continue;
      const float4 z = reinterpret_cast<const float4*>(a.value + at * kLatentRank)[threadIdx.x];
      of_lane.fold({sums.x, sums.y, {z.x, z.y, z.z, z.w}});
    }
    total.fold(of_lane);
  }
  const float inverse = __frcp_rn(total.sum);
  uint2 pairs;
  pairs.x = bf16_pair(total.z[0] * inverse, total.z[1] * inverse);
  pairs.y = bf16_pair(total.z[2] * inverse, total.z[3] * inverse);
  reinterpret_cast<uint2*>(a.out + (int64_t{a.first_row + row} * a.heads + head) * kLatentRank)[threadIdx.x] =
      pairs;
}

// The selected positions of a row, lane by lane, each in ascending order: one warp a row and lane.
__global__ void split_by_lane_kernel(const int32_t* selected, const int32_t* count, int top_k, int lanes,
                                     int32_t* list, int32_t* list_count) {
  begin_in_turn();
  const int row = blockIdx.x / lanes, of = blockIdx.x % lanes, thread = threadIdx.x;
  const int32_t* from = selected + int64_t{row} * top_k;
  int32_t* to = list + int64_t{blockIdx.x} * top_k;
  int written = 0;
  for (int j = 0; j < count[row]; j += 32) {
    const bool exists = j + thread < count[row];
    const int32_t p = exists ? from[j + thread] : 0;
    const bool mine = exists && p / kChunk % lanes == of;
    const unsigned ballot = __ballot_sync(kAllLanes, mine);
    if (mine) to[written + __popc(ballot & ((1u << thread) - 1))] = p;
    written += __popc(ballot);
  }
  if (thread == 0) list_count[blockIdx.x] = written;
}

template <typename Kernel>
void launch(Kernel kernel, int64_t blocks, int shared_bytes, const Parameters& p, cudaStream_t stream) {
  if (shared_bytes > 0) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
               "cudaFuncSetAttribute of attend");
  }
  kernel<<<static_cast<unsigned>(blocks), kAttendThreads, static_cast<size_t>(shared_bytes), stream>>>(p);
  cuda_check(cudaGetLastError(), "launching attend");
}

template <LatentFormat kFormat>
void launch_parts(const Parameters& p, int64_t walks, cudaStream_t stream) {
  const int64_t blocks = walks * kBlocks;
  launch(attend_logits_kernel<kFormat>, blocks, Shared<kFormat>::kLogitBytes, p, stream);
  launch(attend_weights_kernel, blocks, 0, p, stream);
  launch(attend_values_kernel<kFormat>, blocks, Shared<kFormat>::kValueBytes, p, stream);
}

void launch_parts(const Parameters& p, int64_t walks, cudaStream_t stream) {
  for_format(p.pages.latent_format, [&](auto format) { launch_parts<format>(p, walks, stream); });
}

#if PERIGEE_SM90
void launch_attend(const AttendParameters& p, int rows, cudaStream_t stream) {
  if (!launch_attend_few(p, rows, stream)) launch_attend_rows(p, rows, stream);
}
#else
void launch_attend(const AttendParameters&, int, cudaStream_t) {}  // of no GPU that this build is for
#endif

// All rows of a step; `p` lacks what depends on the launch.
void attend(Parameters p, int rows, Arena& scratch, cudaStream_t stream) {
  const int64_t walks_of_row = int64_t{p.groups} * p.walks(), tiles = p.tiles;
  constexpr bool kHopper = PERIGEE_SM90;
  const bool folded = p.walks() > 1;
  const int64_t tile_bytes = kKeyTile * 8 + kHeads * (kKeyTile * (4 + 2) + 4 + int64_t{sizeof(Step)});
  const int64_t walk_bytes =
      (kHopper ? 0 : tiles * tile_bytes) + (folded ? kHeads * (8 + kLatentRank * 4) : 0);
  const int64_t most =
      walk_bytes == 0 ? rows : std::clamp<int64_t>(kMostWorkspace / (walks_of_row * walk_bytes), 1, rows);
  const auto parts = [](int64_t count, int64_t size) { return (count + size - 1) / size; };
  // Launches of about one size, whole chunks long where that is possible.
  const int64_t at_once = std::min(most, parts(parts(rows, parts(rows, most)), kChunk) * kChunk);
  const int64_t walks = at_once * walks_of_row;
  if (folded) {
    p.sums = scratch.take<float2>(walks * kHeads);
    p.value = scratch.take<float>(walks * kHeads * kLatentRank);
  }
  if (!kHopper) {
    p.work = {.record = scratch.take<const uint8_t*>(walks * tiles * kKeyTile),
              .logit = scratch.take<float2>(walks * tiles * kHeads * 32),
              .tile_max = scratch.take<float>(walks * tiles * kHeads),
              .step = scratch.take<Step>(walks * tiles * kHeads),
              .weight = scratch.take<uint4>(walks * tiles * 4 * 32)};
  }
  for (int64_t first = 0; first < rows; first += at_once) {
    const int now = static_cast<int>(std::min(at_once, rows - first));
    p.first_row = static_cast<int>(first);
    if (kHopper) {
      launch_attend(p, now, stream);
    } else {
      launch_parts(p, now * walks_of_row, stream);
    }
    if (folded) {
      launch_overlapping(attend_fold_kernel, {.grid = dim3(now * p.heads), .threads = kFoldThreads}, stream,
                         p);
    }
  }
}

// Positions that the longest row sees.
int64_t most_visible(std::span<const SequenceRows> sequences) {
  int64_t most = 0;
  for (const SequenceRows& s : sequences)
    if (s.rows > 0) most = std::max(most, s.start + s.rows);
  return most;
}

// Keys of one lane among `positions` consecutive ones, at most.
int64_t most_lane_keys(int64_t positions, int lanes) {
  return lanes == 1 ? positions : std::min(positions, (positions / kChunk / lanes + 2) * kChunk);
}

int tiles_of(int64_t keys) { return static_cast<int>((keys + kKeyTile - 1) / kKeyTile); }

Parameters common(const AttendArgs& a, const RowsView& rows, const PagesView& pages) {
  require(a.config.kv_lora_rank == kLatentRank, "attend: kv_lora_rank", a.config.kv_lora_rank, "512");
  require(a.config.qk_rope_head_dim == kLatentRope, "attend: qk_rope_head_dim", a.config.qk_rope_head_dim,
          "64");
  Parameters p{};
  p.query = a.query;
  p.rows = rows;
  p.pages = pages;
  p.heads = a.config.num_heads;
  p.groups = (p.heads + kHeads - 1) / kHeads;
  p.lanes = a.attention_lanes;
  p.scale = static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(a.config.qk_head_dim())));
  p.out = a.out;
  return p;
}

}  // namespace

void CudaBackend::sparse_attend(const AttendArgs& a) {
  const RowsView rows = tables_.rows();
  if (rows.rows == 0) return;
  Arena::Scope scope(scratch_);
  Parameters p = common(a, rows, tables_.pages(a.pages));
  p.segments = 1;
  p.tiles = tiles_of(std::min<int64_t>(a.top_k, most_visible(tables_.bounds())));
  p.list = a.selected;
  p.list_count = a.count;
  p.list_stride = a.top_k;
  if (p.lanes > 1) {
    int32_t* list = scratch_.take<int32_t>(int64_t{rows.rows} * p.lanes * a.top_k);
    int32_t* list_count = scratch_.take<int32_t>(int64_t{rows.rows} * p.lanes);
    launch_overlapping(split_by_lane_kernel, {.grid = dim3(rows.rows * p.lanes), .threads = 32}, stream(),
                       a.selected, a.count, a.top_k, p.lanes, list, list_count);
    p.list = list;
    p.list_count = list_count;
  }
  attend(p, rows.rows, scratch_, stream());
}

void CudaBackend::dense_attend(const AttendArgs& a) {
  const RowsView rows = tables_.rows();
  if (rows.rows == 0) return;
  Arena::Scope scope(scratch_);
  Parameters p = common(a, rows, tables_.pages(a.pages));
  const int64_t visible = most_visible(tables_.bounds());
  p.segment = a.dense_segment;
  p.segments = static_cast<int>((visible + a.dense_segment - 1) / a.dense_segment);
  p.tiles = tiles_of(most_lane_keys(std::min<int64_t>(a.dense_segment, visible), p.lanes));
  attend(p, rows.rows, scratch_, stream());
}

}  // namespace perigee::cuda
