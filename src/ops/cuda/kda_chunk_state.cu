// kda_chunk_state: the walk over a sequence's chunks. A block has 16 or 32 value columns of one head; each of
// its four warps has them for 32 of the key channels of S, in registers, transposed (value columns are rows
// of the matrix instructions), so that what one product gives is the operand of the next. Only the sums over
// key channels cross warps, added as (0 + 1) + (2 + 3). Columns are independent: how many a block has changes
// no bit.
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kda_chunk.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/split_mma.cuh"

namespace perigee::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kWarpKeys = kKdaHead / kWarps;  // key channels a warp has
constexpr int kSteps = kWarpKeys / 16;        // of a product over them
constexpr int kKeyTiles = kWarpKeys / 8;

template <int kTiles>
struct Columns;  // of one thread: 2·kTiles neighbouring value columns
template <>
struct Columns<1> {
  using Floats = float2;
  using Halves = uint32_t;
};
template <>
struct Columns<2> {
  using Floats = float4;
  using Halves = uint2;
};

// Value columns first … first + 2·kTiles − 1 of this thread: column 2·tile + half is row r + 8·half of a
// tile.
template <int kTiles>
__device__ void load_columns(const float* from, float (&x)[2 * kTiles]) {
  *reinterpret_cast<typename Columns<kTiles>::Floats*>(x) =
      *reinterpret_cast<const typename Columns<kTiles>::Floats*>(from);
}
template <int kTiles>
__device__ void store_columns(float* to, const float (&x)[2 * kTiles]) {
  *reinterpret_cast<typename Columns<kTiles>::Floats*>(to) =
      *reinterpret_cast<const typename Columns<kTiles>::Floats*>(x);
}

// Row n of T or M as B[k = j, n = i] from matrix[i][j]: the pairs at 2c and 2c + 8.
struct RowPiece {
  float2 near, far;
  __device__ void load(const float (&row)[kChunk], int c) {
    near = *reinterpret_cast<const float2*>(&row[2 * c]);
    far = *reinterpret_cast<const float2*>(&row[2 * c + 8]);
  }
  __device__ SplitB split() const { return split_b(near.x, near.y, far.x, far.y); }
};

// What a thread reads for one chunk. Each part is loaded for the next chunk as soon as it has been used.
template <int kTiles>
struct Operands {
  static constexpr int kColumns = 2 * kTiles;
  using Halves = typename Columns<kTiles>::Halves;

  SplitB keys[kSteps][2], queries[kSteps][2], commit[kKeyTiles];
  float2 decay[kKeyTiles];
  RowPiece T[2], M;
  Halves v[2][2];                       // [half][e]: row 8·half + 2c + e
  alignas(16) float w[2][2][kColumns];  // of rows of earlier steps
  float beta[2][2];

  // Rows that are not new are zeros.
  __device__ static void load_decayed(SplitB (&to)[kSteps][2], const SplitB (&from)[8][2][32],
                                      const ChunkSpan& span) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        to[step][half] = SplitB{};
        if (span.is_new(half * 8 + lane / 4)) to[step][half] = from[warp * kSteps + step][half][lane];
      }
    }
  }
  __device__ void load_keys(const KdaTile& tile, const ChunkSpan& span) {
    load_decayed(keys, tile.decayed_k, span);
  }
  __device__ void load_queries(const KdaTile& tile, const ChunkSpan& span) {
    load_decayed(queries, tile.decayed_q, span);
  }
  __device__ void load_commit(const KdaTile& tile, const ChunkSpan& span) {
    if (!span.whole()) return;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
      commit[t] = tile.commit_k[warp * kKeyTiles + t][lane];
      decay[t] = *reinterpret_cast<const float2*>(&tile.decay[warp * kWarpKeys + t * 8 + lane % 4 * 2]);
    }
  }
  __device__ void load_T(const KdaTile& tile) {
    const int r = threadIdx.x % kWarp / 4, c = threadIdx.x % 4;
    T[0].load(tile.T[r], c);
    T[1].load(tile.T[8 + r], c);
  }
  // Of the output piece that this warp makes: rows of one half.
  __device__ void load_M(const KdaTile& tile, const ChunkSpan& span) {
    const int i = threadIdx.x / kWarp % 2 * 8 + threadIdx.x % kWarp / 4;
    M = RowPiece{};
    if (span.is_new(i)) M.load(tile.M[i], threadIdx.x % 4);
  }
  // `row` and `column`: of row 0 of the chunk in the step's arrays, and of this thread.
  __device__ void load_values(const KdaChunkLaunch& a, const SlotView& slot, const ChunkSpan& span,
                              int64_t row, int head, int column) {
    const int64_t D = int64_t{a.heads} * kKdaHead;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int i = half * 8 + threadIdx.x % 4 * 2 + e;
        v[half][e] = Halves{};
        beta[half][e] = 0.0f;
#pragma unroll
        for (int n = 0; n < kColumns; ++n) w[half][e][n] = 0.0f;
        if (span.is_new(i)) {
          v[half][e] = *reinterpret_cast<const Halves*>(a.v + (row + i) * D + column);
          beta[half][e] = a.beta[(row + i) * a.heads + head];
        }
        if (i < span.old) load_columns<kTiles>(slot.w + ring_row(span.start + i) * D + column, w[half][e]);
      }
    }
  }
};

template <int kTiles>
__global__ void __launch_bounds__(kThreads) kda_chunk_state_kernel(const KdaChunkLaunch a) {
  constexpr int kColumns = 2 * kTiles;  // of a thread
  // Partial sums over a warp's key channels, as the threads hold them.
  __shared__ float4 predicted_of_warp[kWarps][kTiles][2][kWarp];
  __shared__ float4 from_state_of_warp[kWarps][kTiles][2][kWarp];

  const int in_launch = blockIdx.y, head = a.first_head + in_launch, index = blockIdx.z;
  const SequenceRows sequence = a.rows.sequences[index];
  if (sequence.rows == 0) return;
  const SlotView slot = a.slots[index];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
  const int64_t D = int64_t{a.heads} * kKdaHead;
  const int value = blockIdx.x * 16 * kTiles + kColumns * r;  // this thread's first value column
  const int column = head * kKdaHead + value;
  const int64_t accepted_end = sequence.accepted / kChunk * kChunk;
  const int64_t keep_from = max(slot.base, accepted_end);
  const int chunks = chunks_of(sequence, slot.base);
  const KdaTile* tile =
      a.tiles + int64_t{KdaTiles::first(sequence.first_row, index)} * a.head_count + in_launch;

  // S[column][key]: tile t of 8 keys, as a C of the matrix instructions.
  float S[kTiles][kKeyTiles][4];
#pragma unroll
  for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int key = warp * kWarpKeys + t * 8 + 2 * c + e;
      alignas(16) float x[kColumns];
      load_columns<kTiles>(slot.state + head * slot.state_stride + key * kKdaHead + value, x);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) S[m][t][e] = x[2 * m], S[m][t][2 + e] = x[2 * m + 1];
    }
  }

  Operands<kTiles> in;
  ChunkSpan span(sequence, slot.base, 0);
  int64_t row = sequence.first_row + (span.start - sequence.start);  // of row 0 of the chunk, were it new
  in.load_keys(*tile, span);
  in.load_values(a, slot, span, row, head, column);
  in.load_T(*tile);
  in.load_queries(*tile, span);
  in.load_commit(*tile, span);
  in.load_M(*tile, span);

#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const bool last = chunk + 1 == chunks;
    const KdaTile& next_tile = tile[last ? 0 : a.head_count];
    const ChunkSpan next(sequence, slot.base, last ? chunk : chunk + 1);
    const bool stores = span.whole() && slot.stored != nullptr && span.start + kChunk == accepted_end;
    const bool fresh[2] = {span.has_new(0, 8), span.has_new(8, 8)};

    SplitA state[kTiles][kSteps];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) state[m][step] = split_a(S[m][2 * step], S[m][2 * step + 1]);
    }

    // Predicted values: (e^G ⊙ k)ᵀ S.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!fresh[half]) continue;
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        SplitSum sum;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) sum.add(state[m][step], in.keys[step][half]);
        predicted_of_warp[warp][m][half][lane] = {sum[0], sum[1], sum[2], sum[3]};
      }
    }
    if (!last) in.load_keys(next_tile, next);
    __syncthreads();

    // w = β (v − predicted), or what an earlier step kept.
    float w[kTiles][2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        alignas(16) float p[kWarps][4] = {};
#pragma unroll
        for (int q = 0; q < kWarps; ++q) {
          if (fresh[half]) *reinterpret_cast<float4*>(p[q]) = predicted_of_warp[q][m][half][lane];
        }
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const int e = n % 2, from_thread = 2 * m + n / 2;
          const float v = bf16_to_float(reinterpret_cast<const bf16*>(&in.v[half][e])[from_thread]);
          const float predicted = (p[0][n] + p[1][n]) + (p[2][n] + p[3][n]);
          w[m][half][n] = span.is_new(half * 8 + 2 * c + e) ? in.beta[half][e] * (v - predicted)
                                                            : in.w[half][e][from_thread];
        }
      }
    }
    if (span.start + kChunk > keep_from) {  // every warp has w: a quarter of the rows each
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = half * 8 + 2 * c + e;
          if (warp != half * 2 + e || !span.is_new(i) || span.start + i < keep_from) continue;
          alignas(16) float x[kColumns];
#pragma unroll
          for (int m = 0; m < kTiles; ++m) x[2 * m] = w[m][half][e], x[2 * m + 1] = w[m][half][2 + e];
          store_columns<kTiles>(slot.w + ring_row(span.start + i) * D + column, x);
        }
      }
    }

    // u = T w.
    SplitSum sum[kTiles][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const SplitB T = in.T[half].split();
#pragma unroll
      for (int m = 0; m < kTiles; ++m) sum[m][half].add(split_a(w[m][0], w[m][1]), T);
    }
    // From the state: (e^G ⊙ q)ᵀ S, while the matrix unit would wait for u.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!fresh[half]) continue;
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        SplitSum from_state;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) from_state.add(state[m][step], in.queries[step][half]);
        from_state_of_warp[warp][m][half][lane] = {from_state[0], from_state[1], from_state[2],
                                                   from_state[3]};
      }
    }
    SplitA u[kTiles];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      float left[4], right[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) left[n] = sum[m][0][n], right[n] = sum[m][1][n];
      u[m] = split_a(left, right);
    }

    // S ← e^{G_15} ⊙ S + Σ_j (e^{G_15−G_j} ⊙ k_j) u_jᵀ. What the matrix instructions give is rounded towards
    // zero: the sum over chunks is not left to them.
    if (span.whole() && (stores || !last)) {
#pragma unroll
      for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          SplitSum added;
          added.add(u[m], in.commit[t]);
#pragma unroll
          for (int n = 0; n < 4; ++n)
            S[m][t][n] = __fmaf_rn(n % 2 ? in.decay[t].y : in.decay[t].x, S[m][t][n], added[n]);
        }
      }
    }
    if (stores) {
#pragma unroll
      for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key = warp * kWarpKeys + t * 8 + 2 * c + e;
          alignas(16) float x[kColumns];
#pragma unroll
          for (int m = 0; m < kTiles; ++m) x[2 * m] = S[m][t][e], x[2 * m + 1] = S[m][t][2 + e];
          store_columns<kTiles>(slot.stored + head * slot.stored_stride + key * kKdaHead + value, x);
        }
      }
    }
    const SplitB M = in.M.split();
    if (!last) {
      in.load_values(a, slot, next, row + kChunk, head, column);
      in.load_T(next_tile);
      in.load_queries(next_tile, next);
      in.load_commit(next_tile, next);
      in.load_M(next_tile, next);
    }
    __syncthreads();

    // Output: from the state, and M u. A warp has one of the 2·kTiles pieces.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        if (!fresh[half] || warp != m * 2 + half) continue;
        SplitSum inside;
        inside.add(u[m], M);
        alignas(16) float p[kWarps][4];
#pragma unroll
        for (int q = 0; q < kWarps; ++q)
          *reinterpret_cast<float4*>(p[q]) = from_state_of_warp[q][m][half][lane];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = half * 8 + 2 * c + e;
          if (!span.is_new(i)) continue;
          float2 o;
          o.x = ((p[0][e] + p[1][e]) + (p[2][e] + p[3][e])) + inside[e];
          o.y = ((p[0][2 + e] + p[1][2 + e]) + (p[2][2 + e] + p[3][2 + e])) + inside[2 + e];
          *reinterpret_cast<float2*>(a.out + (row + i) * D + column + 2 * m) = o;
        }
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
  if (sequence.rows == 0) return;
  const SlotView slot = a.slots[index];
  const int64_t D = int64_t{a.heads} * kKdaHead, column = int64_t{head} * kKdaHead + threadIdx.x;
  const int64_t end = sequence.start + sequence.rows;

  const int64_t keep_from = max(sequence.start, max(slot.base, sequence.accepted / kChunk * kChunk));
  const KdaTile* tiles =
      a.tiles + int64_t{KdaTiles::first(sequence.first_row, index)} * a.head_count + in_launch;
  float G = 0.0f;
  if (keep_from % kChunk != 0) G = slot.G[ring_row(keep_from - 1) * D + column];
  for (int64_t p = keep_from; p < end; ++p) {
    const int64_t row = sequence.first_row + (p - sequence.start), to = ring_row(p) * D + column;
    const float g = a.g[row * D + column];
    G = p % kChunk == 0 ? g : G + g;
    slot.G[to] = G;
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
  // Few sequences: narrow blocks, so that more multiprocessors share the walk.
  constexpr unsigned kNarrowBelow = 64;
  if (sequences * heads < kNarrowBelow) {
    kda_chunk_state_kernel<1><<<dim3(8, heads, sequences), kThreads, 0, stream>>>(launch);
  } else {
    kda_chunk_state_kernel<2><<<dim3(4, heads, sequences), kThreads, 0, stream>>>(launch);
  }
  cuda_check(cudaGetLastError(), "launching kda_chunk_state");
  keep_rows_kernel<<<dim3(heads, sequences), kKdaHead, 0, stream>>>(launch);
  cuda_check(cudaGetLastError(), "launching keep_rows");
}

}  // namespace perigee::cuda
