// kda_chunk_state: the walk over a sequence's chunks. A block has 16 value columns of one head; each of its
// four warps has them for 32 of the key channels of S, in registers, transposed (value columns are rows of
// the matrix instructions), so that what one product gives is the operand of the next. Only the sums over key
// channels cross warps, added as (0 + 1) + (2 + 3).
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kda_chunk.cuh"
#include "ops/cuda/kda_terms.cuh"

namespace perigee::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kColumns = 16;                  // of a block
constexpr int kWarpKeys = kKdaHead / kWarps;  // key channels a warp has
constexpr int kSteps = kWarpKeys / 16;        // of a product over them

// What a thread reads for one chunk. Each part is loaded for the next chunk as soon as it has been used.
struct Operands {
  SplitB keys[kSteps][2], queries[kSteps][2], commit[kSteps][2], M;
  float4 decay[kSteps];
  float4 beta;    // of the thread's rows 4c …
  uint32_t v[4];  // of a row: two columns
  float2 w[4];    // of rows of earlier steps

  __device__ static int warp() { return threadIdx.x / kWarp; }
  __device__ static int lane() { return threadIdx.x % kWarp; }
  __device__ void load_keys(const KdaTile& tile) {
#pragma unroll
    for (int n = 0; n < 2 * kSteps; ++n)
      keys[n / 2][n % 2] = tile.decayed_k[warp() * kSteps + n / 2][n % 2][lane()];
  }
  __device__ void load_queries(const KdaTile& tile) {
#pragma unroll
    for (int n = 0; n < 2 * kSteps; ++n)
      queries[n / 2][n % 2] = tile.decayed_q[warp() * kSteps + n / 2][n % 2][lane()];
  }
  __device__ void load_commit(const KdaTile& tile, const ChunkSpan& span) {
    if (!span.whole()) return;
#pragma unroll
    for (int n = 0; n < 2 * kSteps; ++n)
      commit[n / 2][n % 2] = tile.commit_k[warp() * kSteps + n / 2][n % 2][lane()];
#pragma unroll
    for (int n = 0; n < kSteps; ++n) {
      const int key = (warp() * kSteps + n) * 16 + 4 * (lane() % 4);
      decay[n] = *reinterpret_cast<const float4*>(&tile.decay[key]);
    }
  }
  // Of the output piece that this warp makes: rows of one tile.
  __device__ void load_M(const KdaTile& tile) { M = tile.M[warp() % 2][lane()]; }
  // `row` and `column`: of row 0 of the chunk in the step's arrays, and of this thread.
  __device__ void load_values(const KdaChunkLaunch& a, const SlotView& slot, const KdaTile& tile,
                              const ChunkSpan& span, int64_t row, int64_t column) {
    const int64_t D = int64_t{a.heads} * kKdaHead;
    const int first = 4 * (lane() % 4);
    beta = *reinterpret_cast<const float4*>(&tile.beta[first]);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int i = first + n;
      v[n] = 0;
      w[n] = {0.0f, 0.0f};
      if (span.is_new(i)) v[n] = *reinterpret_cast<const uint32_t*>(a.v + (row + i) * D + column);
      if (i < span.old)
        w[n] = *reinterpret_cast<const float2*>(slot.w + ring_row(span.start + i) * D + column);
    }
  }
};

__global__ void __launch_bounds__(kThreads) kda_chunk_state_kernel(const KdaChunkLaunch a) {
  // Partial sums over a warp's key channels, as the threads hold them.
  __shared__ float4 predicted_of_warp[kWarps][2][kWarp];
  __shared__ float4 from_state_of_warp[kWarps][2][kWarp];

  const int in_launch = blockIdx.y, head = a.first_head + in_launch, index = blockIdx.z;
  const SequenceRows sequence = a.rows.sequences[index];
  if (kda_decodes(sequence)) return;
  const SlotView slot = a.slots[index];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
  const int64_t D = int64_t{a.heads} * kKdaHead;
  const int value = blockIdx.x * kColumns + 2 * r;  // this thread's first value column
  const int64_t column = head * kKdaHead + value;
  const int64_t accepted_end = sequence.accepted / kChunk * kChunk;
  const int64_t kept_from = keep_from(sequence, slot.base);
  const int chunks = chunks_of(sequence, slot.base);
  const KdaTile* tile =
      a.tiles + int64_t{KdaTiles::first(sequence.first_row, index)} * a.head_count + in_launch;

  // S[column][key]: two tiles of 16 keys, as a C of the matrix instructions.
  float S[kSteps][2][4];
#pragma unroll
  for (int n = 0; n < 8 * kSteps; n += 2) {
    const int step = n / 8, tile_of_step = n / 4 % 2, e = n / 2 % 2;
    const int key = (warp * kSteps + step) * 16 + sixteen(tile_of_step, 2 * c + e);
    const float2 x =
        *reinterpret_cast<const float2*>(slot.state + head * slot.state_stride + key * kKdaHead + value);
    S[step][tile_of_step][e] = x.x, S[step][tile_of_step][2 + e] = x.y;
  }

  Operands in;
  ChunkSpan span(sequence, slot.base, 0);
  int64_t row = sequence.first_row + (span.start - sequence.start);  // of row 0 of the chunk, were it new
  in.load_keys(*tile);
  in.load_values(a, slot, *tile, span, row, column);
  in.load_queries(*tile);
  in.load_commit(*tile, span);
  in.load_M(*tile);

#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const bool last = chunk + 1 == chunks;
    const KdaTile& next_tile = tile[last ? 0 : a.head_count];
    const ChunkSpan next(sequence, slot.base, last ? chunk : chunk + 1);
    const bool stores = span.whole() && slot.stored != nullptr && span.start + kChunk == accepted_end;

    SplitA state[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) state[step] = split_a(S[step][0], S[step][1]);

    // Predicted values: (e^G ⊙ k)ᵀ S.
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      SplitSum sum;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) sum.add(state[step], in.keys[step][h]);
      predicted_of_warp[warp][h][lane] = {sum[0], sum[1], sum[2], sum[3]};
    }
    if (!last) in.load_keys(next_tile);
    __syncthreads();

    // w = β (v − predicted), or what an earlier step kept.
    float w[2][4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float p[kWarps][4];
#pragma unroll
      for (int q = 0; q < kWarps; ++q) *reinterpret_cast<float4*>(p[q]) = predicted_of_warp[q][h][lane];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int of_thread = 2 * h + n % 2;
        const float beta = (&in.beta.x)[of_thread];
        const float v = __uint_as_float(n < 2 ? in.v[of_thread] << 16 : in.v[of_thread] & 0xFFFF0000u);
        const float predicted = (p[0][n] + p[1][n]) + (p[2][n] + p[3][n]);
        w[h][n] = span.is_new(4 * c + of_thread) ? beta * (v - predicted)
                                                 : (n < 2 ? in.w[of_thread].x : in.w[of_thread].y);
      }
    }
    if (span.start + kChunk > kept_from) {  // every warp has w: a quarter of the rows each
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = sixteen(h, 2 * c + e);
          if (warp != h * 2 + e || !span.is_new(i) || span.start + i < kept_from) continue;
          *reinterpret_cast<float2*>(slot.w + ring_row(span.start + i) * D + column) = {w[h][e], w[h][2 + e]};
        }
      }
    }
    const SplitA w_operand = split_a(w[0], w[1]);

    // S ← e^{G_15} ⊙ S + Σ_j k'_j w_jᵀ. What the matrix instructions give is rounded towards zero: the sum
    // over chunks is not left to them.
    if (span.whole() && (stores || !last)) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const float decay[4] = {in.decay[step].x, in.decay[step].y, in.decay[step].z, in.decay[step].w};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float added[4] = {};
          add_split(added, w_operand, in.commit[step][h]);
#pragma unroll
          for (int n = 0; n < 4; ++n)
            S[step][h][n] = __fmaf_rn(decay[2 * h + n % 2], S[step][h][n], added[n]);
        }
      }
    }
    // From the state before: (e^G ⊙ q)ᵀ S.
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      SplitSum sum;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) sum.add(state[step], in.queries[step][h]);
      from_state_of_warp[warp][h][lane] = {sum[0], sum[1], sum[2], sum[3]};
    }
    if (stores) {
#pragma unroll
      for (int n = 0; n < 8 * kSteps; n += 2) {
        const int step = n / 8, h = n / 4 % 2, e = n / 2 % 2;
        const int key = (warp * kSteps + step) * 16 + sixteen(h, 2 * c + e);
        *reinterpret_cast<float2*>(slot.stored + head * slot.stored_stride + key * kKdaHead + value) = {
            S[step][h][e], S[step][h][2 + e]};
      }
    }
    const SplitB M = in.M;
    if (!last) {
      in.load_values(a, slot, next_tile, next, row + kChunk, column);
      in.load_queries(next_tile);
      in.load_commit(next_tile, next);
      in.load_M(next_tile);
    }
    __syncthreads();

    // Output: from the state, and M' w. A warp has one of the two tiles of rows.
    if (warp < 2) {
      float p[kWarps][4], o[4];
#pragma unroll
      for (int q = 0; q < kWarps; ++q) *reinterpret_cast<float4*>(p[q]) = from_state_of_warp[q][warp][lane];
#pragma unroll
      for (int n = 0; n < 4; ++n) o[n] = (p[0][n] + p[1][n]) + (p[2][n] + p[3][n]);
      const int rows[2] = {sixteen(warp, 2 * c), sixteen(warp, 2 * c + 1)};
      add_rows(o, w, w_operand, M, rows);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (span.is_new(rows[e]))
          *reinterpret_cast<float2*>(a.out + (row + rows[e]) * D + column) = {o[e], o[2 + e]};
      }
    }
    tile += a.head_count;
    span = next;
    row += kChunk;
  }
}

// What the rows at or after the last stored chunk start leave in the ring, w apart: a block for each head and
// sequence. It runs after kda_chunk_rows, which reads rows whose places are taken here.
__global__ void __launch_bounds__(kKdaHead) keep_rows_kernel(const KdaChunkLaunch a) {
  const int in_launch = blockIdx.x, head = a.first_head + in_launch, index = blockIdx.y;
  const SequenceRows sequence = a.rows.sequences[index];
  if (kda_decodes(sequence)) return;
  const SlotView slot = a.slots[index];
  const int64_t D = int64_t{a.heads} * kKdaHead, column = int64_t{head} * kKdaHead + threadIdx.x;
  const int64_t end = sequence.start + sequence.rows;

  const KdaTile* tiles =
      a.tiles + int64_t{KdaTiles::first(sequence.first_row, index)} * a.head_count + in_launch;
  for (int64_t p = max(sequence.start, keep_from(sequence, slot.base)); p < end; ++p) {
    const int64_t row = sequence.first_row + (p - sequence.start), to = ring_row(p) * D + column;
    slot.g[to] = a.g[row * D + column];
    slot.k[to] = a.k[row * D + column];
    if (threadIdx.x < kChunk) {
      const KdaTile& tile = tiles[(p - slot.base) / kChunk * a.head_count];
      slot.T[(int64_t{ring_row(p)} * a.heads + head) * kChunk + threadIdx.x] =
          tile.T[p % kChunk][threadIdx.x];
    }
  }
  for (int64_t p = max(sequence.start, end - KdaSlot::kRing); p < end; ++p) {
    const int64_t row = sequence.first_row + (p - sequence.start);
#pragma unroll
    for (int part = 0; part < 3; ++part)
      slot.conv_input[(ring_row(p) * 3 + part) * D + column] = a.conv_input[(row * 3 + part) * D + column];
  }
}

}  // namespace

void launch_kda_chunk_state(const KdaChunkLaunch& launch, cudaStream_t stream) {
  const auto sequences = static_cast<unsigned>(launch.rows.count),
             heads = static_cast<unsigned>(launch.head_count);
  kda_chunk_state_kernel<<<dim3(kKdaHead / kColumns, heads, sequences), kThreads, 0, stream>>>(launch);
  cuda_check(cudaGetLastError(), "launching kda_chunk_state");
  keep_rows_kernel<<<dim3(heads, sequences), kKdaHead, 0, stream>>>(launch);
  cuda_check(cudaGetLastError(), "launching keep_rows");
}

}  // namespace perigee::cuda
