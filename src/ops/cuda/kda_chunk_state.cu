// kda_chunk_state: the walk over a sequence's chunks. A block has 16 value columns of one head. Four of its
// warps have them for 32 of the key channels of S each, in registers, transposed (value columns are rows of
// the matrix instructions), so that what one product gives is the operand of the next; only the sums over key
// channels cross warps, added as (0 + 1) + (2 + 3), and one barrier a chunk is all they wait for. Two warps
// make the output, a tile of rows each, beside the next chunk's products. One warp copies what the chunks to
// come need to a ring of stages in shared memory: the blocks of a head are a cluster, and a tile is read once
// for all of them. At the end it also puts the step's last rows into the sequence's ring.
#include <cstddef>

#include "ops/cuda/bulk_copies.cuh"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kda_chunk.cuh"
#include "ops/cuda/kda_terms.cuh"

namespace perigee::cuda {
namespace {

constexpr int kStateWarps = 4, kOutputWarps = 2, kUsers = kStateWarps + kOutputWarps;  // of a stage
constexpr int kThreads = (kUsers + 1) * kWarp;
constexpr int kColumns = 16, kSlices = kKdaHead / kColumns;  // of a block; blocks of a head
constexpr int kWarpKeys = kKdaHead / kStateWarps;            // key channels a warp has
constexpr int kSteps = kWarpKeys / 16;                       // of a product over them
constexpr int kTileBytes = offsetof(KdaTile, T);
static_assert(kTileBytes % 16 == 0 && sizeof(KdaTile) % 16 == 0);

// At a stage's barrier, beside the lanes that copy: of the one that announces the bytes of a tile.
#if PERIGEE_SM90
constexpr int kTileArrivals = 1;
#else
constexpr int kTileArrivals = 0;
#endif

template <int kStages>
struct WalkShared {
  // A KdaTile without T.
  alignas(128) unsigned char tile[kStages][kTileBytes];
  // Rows in groups of four, 160 bytes apart: what the threads of a quad read lies in different banks.
  alignas(16) bf16 v[kStages][kGroups][(kGroup + 1) * kColumns];
  // Sums over a warp's key channels, as the threads hold them; by the chunk's parity.
  float4 predicted[2][kStateWarps][2][kWarp];
  float4 from_state[2][kStateWarps][2][kWarp];
  CopyBarrier full[kStages];   // a stage's copies have come
  CopyBarrier free[kStages];   // its users are done
  CopyBarrier ready[kStages];  // of the cluster's first block: all blocks await the stage's tile

  __device__ const KdaTile& tile_of_stage(int stage) const {
    return *reinterpret_cast<const KdaTile*>(tile[stage]);
  }
};

// What the warps of a block have in common.
struct Walk {
  SequenceRows sequence;
  SlotView slot;
  const KdaTile* tiles;  // of chunk 0; head_count apart
  int head, chunks;
  int64_t D, column;  // the block's first
  int64_t kept_from;

  __device__ Walk(const KdaChunkLaunch& a)
      : sequence(a.rows.sequences[blockIdx.z]),
        slot(a.slots[blockIdx.z]),
        tiles(a.tiles +
              int64_t{KdaTiles::first(sequence.first_row, static_cast<int>(blockIdx.z))} * a.head_count +
              blockIdx.y),
        head(a.first_head + static_cast<int>(blockIdx.y)),
        chunks(chunks_of(sequence, slot.base)),
        D(int64_t{a.heads} * kKdaHead),
        column(int64_t{head} * kKdaHead + blockIdx.x * kColumns),
        kept_from(keep_from(sequence, slot.base)) {}
  __device__ ChunkSpan span(int chunk) const { return ChunkSpan(sequence, slot.base, chunk); }
  // Of row 0 of a chunk in the step's arrays, were it new.
  __device__ int64_t row(const ChunkSpan& span) const {
    return sequence.first_row + (span.start - sequence.start);
  }
};

// Where in the ring of stages a chunk is.
template <int kStages>
struct Place {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// Sums over all key channels.
__device__ void add_warps(float (&sum)[4], const float4 (&of_warp)[kStateWarps][2][kWarp], int h) {
  const int lane = threadIdx.x % kWarp;
  float p[kStateWarps][4];
#pragma unroll
  for (int q = 0; q < kStateWarps; ++q) *reinterpret_cast<float4*>(p[q]) = of_warp[q][h][lane];
#pragma unroll
  for (int n = 0; n < 4; ++n) sum[n] = (p[0][n] + p[1][n]) + (p[2][n] + p[3][n]);
}

// β and v of the rows 4c … of a thread, and its two columns.
struct Values {
  float4 beta;
  uint32_t v[4];

  template <int kStages>
  __device__ Values(const WalkShared<kStages>& s, int stage) {
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
    beta = *reinterpret_cast<const float4*>(&s.tile_of_stage(stage).beta[4 * c]);
#pragma unroll
    for (int n = 0; n < 4; ++n)
      v[n] = *reinterpret_cast<const uint32_t*>(&s.v[stage][c][n * kColumns + 2 * r]);
  }
  // w = β (v − predicted), or what an earlier step kept.
  __device__ void make_w(float (&w)[2][4], const float4 (&predicted_of_warp)[kStateWarps][2][kWarp],
                         const Walk& walk, const ChunkSpan& span) const {
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
    const float of_row[4] = {beta.x, beta.y, beta.z, beta.w};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float predicted[4];
      add_warps(predicted, predicted_of_warp, h);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int m = 2 * h + n % 2;
        const float value = __uint_as_float(n < 2 ? v[m] << 16 : v[m] & 0xFFFF0000u);
        w[h][n] = span.is_new(4 * c + m) ? of_row[m] * (value - predicted[n]) : 0.0f;
      }
    }
    if (span.old == 0) return;
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int i = 4 * c + m;
      if (i >= span.old) continue;
      const float2 kept = *reinterpret_cast<const float2*>(walk.slot.w + ring_row(span.start + i) * walk.D +
                                                           walk.column + 2 * r);
      w[m / 2][m % 2] = kept.x, w[m / 2][2 + m % 2] = kept.y;
    }
  }
};

template <int kStages>
__device__ void release(WalkShared<kStages>& s, int stage) {
  __syncwarp();
  if (threadIdx.x % kWarp == 0) arrive(&s.free[stage]);
}

template <int kStages>
__device__ void walk_state(WalkShared<kStages>& s, const Walk& walk) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
  const int64_t column = walk.column + 2 * r, in_head = blockIdx.x * kColumns + 2 * r;
  const int64_t accepted_end = walk.sequence.accepted / kChunk * kChunk;

  // S[column][key]: two tiles of 16 keys, as a C of the matrix instructions. n: of (step, tile, e).
  float S[kSteps][2][4];
  const auto key_of = [&](int n) { return (warp * kSteps + n / 4) * 16 + sixteen(n / 2 % 2, 2 * c + n % 2); };
  const float* first = walk.slot.state + walk.head * walk.slot.state_stride + in_head;
#pragma unroll
  for (int n = 0; n < 4 * kSteps; ++n) {
    const float2 x = *reinterpret_cast<const float2*>(first + key_of(n) * kKdaHead);
    S[n / 4][n / 2 % 2][n % 2] = x.x, S[n / 4][n / 2 % 2][2 + n % 2] = x.y;
  }

  Place<kStages> place;
#pragma unroll 1
  for (int chunk = 0; chunk < walk.chunks; ++chunk, place.next()) {
    const ChunkSpan span = walk.span(chunk);
    const bool last = chunk + 1 == walk.chunks;
    const bool stores = span.whole() && walk.slot.stored != nullptr && span.start + kChunk == accepted_end;
    const bool commits = span.whole() && (stores || !last);
    const KdaTile& tile = s.tile_of_stage(place.stage);

    SplitA state[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) state[step] = split_a(S[step][0], S[step][1]);
    wait_barrier(&s.full[place.stage], place.parity);

    // (e^G ⊙ k)ᵀ S and (e^G ⊙ q)ᵀ S.
    SplitSum keys[2], queries[2];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int h = 0; h < 2; ++h) keys[h].add(state[step], tile.decayed_k[warp * kSteps + step][h][lane]);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int h = 0; h < 2; ++h) queries[h].add(state[step], tile.decayed_q[warp * kSteps + step][h][lane]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      s.predicted[chunk % 2][warp][h][lane] = {keys[h][0], keys[h][1], keys[h][2], keys[h][3]};
      s.from_state[chunk % 2][warp][h][lane] = {queries[h][0], queries[h][1], queries[h][2], queries[h][3]};
    }
    const Values values(s, place.stage);
    SplitB commit[kSteps][2] = {};
    float4 decay[kSteps] = {};
    if (commits) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int h = 0; h < 2; ++h) commit[step][h] = tile.commit_k[warp * kSteps + step][h][lane];
        decay[step] = *reinterpret_cast<const float4*>(&tile.decay[(warp * kSteps + step) * 16 + 4 * c]);
      }
    }
    release(s, place.stage);
    sync_threads<1, kUsers * kWarp>();

    float w[2][4];
    values.make_w(w, s.predicted[chunk % 2], walk, span);
    if (span.start + kChunk > walk.kept_from) {  // every warp has w: a quarter of the rows each
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = sixteen(h, 2 * c + e);
          if (warp != h * 2 + e || !span.is_new(i) || span.start + i < walk.kept_from) continue;
          *reinterpret_cast<float2*>(walk.slot.w + ring_row(span.start + i) * walk.D + column) = {
              w[h][e], w[h][2 + e]};
        }
      }
    }
    if (!commits) continue;

    // S ← e^{G_15} ⊙ S + Σ_j k'_j w_jᵀ. What the matrix instructions give is rounded towards zero: the sum
    // over chunks is not left to them.
    const SplitA w_operand = split_a(w[0], w[1]);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const float of_key[4] = {decay[step].x, decay[step].y, decay[step].z, decay[step].w};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float added[4] = {};
        add_split(added, w_operand, commit[step][h]);
#pragma unroll
        for (int n = 0; n < 4; ++n) S[step][h][n] = __fmaf_rn(of_key[2 * h + n % 2], S[step][h][n], added[n]);
      }
    }
    if (stores) {
      float* stored = walk.slot.stored + walk.head * walk.slot.stored_stride + in_head;
#pragma unroll
      for (int n = 0; n < 4 * kSteps; ++n)
        *reinterpret_cast<float2*>(stored + key_of(n) * kKdaHead) = {S[n / 4][n / 2 % 2][n % 2],
                                                                     S[n / 4][n / 2 % 2][2 + n % 2]};
    }
  }
}

// Output: from the state before the chunk, and M' w. `h`: this warp's tile of rows.
template <int kStages>
__device__ void make_output(WalkShared<kStages>& s, const Walk& walk, float* out, int h) {
  const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
  const int rows[2] = {sixteen(h, 2 * c), sixteen(h, 2 * c + 1)};
  Place<kStages> place;
#pragma unroll 1
  for (int chunk = 0; chunk < walk.chunks; ++chunk, place.next()) {
    const ChunkSpan span = walk.span(chunk);
    wait_barrier(&s.full[place.stage], place.parity);
    const Values values(s, place.stage);
    const SplitB M = s.tile_of_stage(place.stage).M[h][lane];
    release(s, place.stage);
    sync_threads<1, kUsers * kWarp>();

    float w[2][4], o[4];
    values.make_w(w, s.predicted[chunk % 2], walk, span);
    add_warps(o, s.from_state[chunk % 2], h);
    add_rows(o, w, split_a(w[0], w[1]), M, rows);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (span.is_new(rows[e]))
        *reinterpret_cast<float2*>(out + (walk.row(span) + rows[e]) * walk.D + walk.column + 2 * r) = {
            o[e], o[2 + e]};
    }
  }
}

// Fills the stages.
template <int kStages>
__device__ void copy_chunks(WalkShared<kStages>& s, const Walk& walk, const KdaChunkLaunch& a) {
  const int lane = threadIdx.x % kWarp;
  Place<kStages> place;
  for (int chunk = 0; chunk < walk.chunks; ++chunk, place.next()) {
    const int stage = place.stage;
    const ChunkSpan span = walk.span(chunk);
    const KdaTile* tile = walk.tiles + int64_t{chunk} * a.head_count;
    if (chunk >= kStages) wait_barrier(&s.free[stage], place.parity ^ 1);
#if PERIGEE_SM90
    if (lane == 0) {
      arrive_expecting(&s.full[stage], kTileBytes);
      arrive_at(&s.ready[stage], 0);
    }
#else
    for (int n = lane; n < kTileBytes / 16; n += kWarp)
      copy_16(s.tile[stage] + 16 * n, reinterpret_cast<const unsigned char*>(tile) + 16 * n, true);
#endif
    const int i = lane / 2, half = lane % 2 * kPiece;  // of a row of v
    if (span.is_new(i)) {
      copy_16(&s.v[stage][i / kGroup][i % kGroup * kColumns + half],
              a.v + (walk.row(span) + i) * walk.D + walk.column + half, true);
    }
    arrive_after_copies(&s.full[stage]);
#if PERIGEE_SM90
    if (lane == 0 && rank_in_cluster() == 0) {
      wait_barrier(&s.ready[stage], place.parity);
      copy_bytes(s.tile[stage], tile, kTileBytes, &s.full[stage], (1 << kSlices) - 1);
    }
#endif
  }
}

// What the step's last rows leave in the ring, w apart: four columns of a row a lane.
__device__ void keep_rows(const Walk& walk, const KdaChunkLaunch& a) {
  constexpr int kLanes = kColumns / 4, kTogether = kWarp / kLanes;
  const SequenceRows& sequence = walk.sequence;
  const SlotView& slot = walk.slot;
  const int lane = threadIdx.x % kWarp, first = lane / kLanes, piece = 4 * (lane % kLanes);
  const int64_t end = sequence.start + sequence.rows, column = walk.column + piece;
  const auto row = [&](int64_t position) { return sequence.first_row + (position - sequence.start); };
  for (int64_t p = max(sequence.start, walk.kept_from) + first; p < end; p += kTogether) {
    const int64_t from = row(p) * walk.D + column, to = ring_row(p) * walk.D + column;
    *reinterpret_cast<float4*>(slot.g + to) = *reinterpret_cast<const float4*>(a.g + from);
    *reinterpret_cast<uint2*>(slot.k + to) = *reinterpret_cast<const uint2*>(a.k + from);
    if (blockIdx.x == 0) {
      const KdaTile& tile = walk.tiles[(p - slot.base) / kChunk * a.head_count];
      *reinterpret_cast<float4*>(slot.T + (int64_t{ring_row(p)} * a.heads + walk.head) * kChunk + piece) =
          *reinterpret_cast<const float4*>(&tile.T[p % kChunk][piece]);
    }
  }
  for (int64_t p = max(sequence.start, end - KdaSlot::kRing) + first; p < end; p += kTogether) {
#pragma unroll
    for (int part = 0; part < 3; ++part) {
      *reinterpret_cast<uint2*>(slot.conv_input + (ring_row(p) * 3 + part) * walk.D + column) =
          *reinterpret_cast<const uint2*>(a.conv_input + (row(p) * 3 + part) * walk.D + column);
    }
  }
}

template <int kStages>
__global__ void __launch_bounds__(kThreads) kda_chunk_state_kernel(const KdaChunkLaunch a) {
  static_assert(kColumns == kChunk);  // keep_rows: a row of T beside the columns of a block
  extern __shared__ __align__(128) unsigned char shared[];
  auto& s = *reinterpret_cast<WalkShared<kStages>*>(shared);
  const Walk walk(a);
  if (kda_decodes(walk.sequence)) return;  // as all blocks of the cluster
  if (threadIdx.x == 0) {
    for (int n = 0; n < kStages; ++n) {
      init_barrier(&s.full[n], kWarp + kTileArrivals);
      init_barrier(&s.ready[n], kSlices);
      init_barrier(&s.free[n], kUsers);
    }
#if PERIGEE_SM90
    publish_barriers();
#endif
  }
#if PERIGEE_SM90
  sync_cluster();
#else
  __syncthreads();
#endif
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
  if (warp < kStateWarps) {
    walk_state(s, walk);
  } else if (warp < kUsers) {
    make_output(s, walk, a.out, warp - kStateWarps);
  } else {
    copy_chunks(s, walk, a);
    keep_rows(walk, a);
  }
#if PERIGEE_SM90
  __syncwarp();
  sync_cluster();  // the first block is there until the others have announced their last stage
#endif
}

template <int kStages>
void launch(const KdaChunkLaunch& parameters, cudaStream_t stream) {
  constexpr int kBytes = sizeof(WalkShared<kStages>);
  static const cudaError_t raised = cudaFuncSetAttribute(kda_chunk_state_kernel<kStages>,
                                                         cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  cuda_check(raised, "cudaFuncSetAttribute");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kSlices, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kSlices, static_cast<unsigned>(parameters.head_count),
                        static_cast<unsigned>(parameters.rows.count));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = PERIGEE_SM90;
  cuda_check(cudaLaunchKernelEx(&config, kda_chunk_state_kernel<kStages>, parameters),
             "launching kda_chunk_state");
}

}  // namespace

void launch_kda_chunk_state(const KdaChunkLaunch& parameters, cudaStream_t stream) {
  constexpr int kFew = 3, kMany = 7;  // stages: two blocks of few share a multiprocessor
  static const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  if (PERIGEE_SM90 && parameters.head_count * parameters.rows.count * kSlices <= multiprocessors) {
    launch<kMany>(parameters, stream);
  } else {
    launch<kFew>(parameters, stream);
  }
}

}  // namespace perigee::cuda
