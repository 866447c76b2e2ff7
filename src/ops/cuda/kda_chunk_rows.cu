// kda_chunk_rows: a block for each chunk and head. Decays are those of pairs of rows, e^{G_i−G_j} with i > j,
// so that no exponent is positive, whatever the decay. Rows form groups of 4. Inside a group a pair's decay
// is taken as it is; between groups it is e^{G_i−G_a} · e^{G_a−G_b} · e^{G_b−G_j}, a the first row of i's
// group and b the last of j's: 37 exponentials a channel instead of 151. Row i reads rows ≤ i alone.
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kda_chunk.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/split_mma.cuh"
#include "ops/elementary.h"

namespace perigee::cuda {
namespace {

constexpr int kThreads = kKdaHead;  // one a key channel
constexpr int kWarps = kThreads / kWarp;
constexpr int kGroup = 4, kGroups = kChunk / kGroup;
constexpr int kPairs = 7;           // of a group: (1,0), (2,0), (2,1), (3,0), (3,1), (3,2), (3,3)
constexpr int kRow = kKdaHead + 8;  // floats: eight rows of one operand lie in different banks of memory

__host__ __device__ constexpr int pair_of(int t, int s) { return t * (t - 1) / 2 + s; }
__host__ __device__ constexpr int between(int i, int j) { return i * (i - 1) / 2 + j; }  // groups j < i

struct Decayed {
  float q[kChunk][kRow];              // e^{G_i−G_a} q_i
  float k[kChunk][kRow];              // e^{G_i−G_a} k_i
  float pair[kGroups][kPairs][kRow];  // e^{G_t−G_s} k_s in a group; the last is k_3
  float between[6][kRow];             // e^{G_a−G_b}
  float since_start[kGroups][kRow];   // e^{G_a}
  float until_end[kGroups][kRow];     // e^{G_15−G_b}
  float A[kChunk][kChunk];
};

// Which sequence and chunk a block has; false: none.
__device__ bool find_chunk(const KdaChunkLaunch& a, int64_t block, int& sequence, int& chunk) {
  if (a.chunks_of_sequence > 0) {
    sequence = static_cast<int>(block / a.chunks_of_sequence);
    chunk = static_cast<int>(block % a.chunks_of_sequence);
  } else {
    int low = 0, high = a.rows.count;  // the last sequence whose first tile is not after the block's
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (KdaTiles::first(a.rows.sequences[middle].first_row, middle) <= block ? low : high) = middle;
    }
    sequence = low;
    chunk = static_cast<int>(block) - KdaTiles::first(a.rows.sequences[low].first_row, low);
  }
  const SequenceRows& s = a.rows.sequences[sequence];
  return s.rows > 0 && chunk < chunks_of(s, a.slots[sequence].base);
}

// Thread d: channel d of all rows.
__device__ void decay_channel(const KdaChunkLaunch& a, const SequenceRows& sequence, const SlotView& slot,
                              const ChunkSpan& span, int head, KdaTile& tile, Decayed& s) {
  const int d = threadIdx.x, D = a.heads * kKdaHead, column = head * kKdaHead + d;
  bf16 q[kChunk], k[kChunk];
  float G[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {  // all loads before the first use; rows that do not exist read another
    const int64_t position = span.start + i;
    const int64_t in_step = min(max(position - sequence.start, int64_t{0}), int64_t{sequence.rows - 1});
    const int64_t row = (sequence.first_row + in_step) * D + column;
    const int64_t kept = int64_t{ring_row(position)} * D + column;
    const bool old = i < span.old;
    q[i] = a.q[row];
    k[i] = old ? slot.k[kept] : a.k[row];
    G[i] = old ? slot.G[kept] : a.g[row];
  }
  float qf[kChunk], kf[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if (i >= span.old && i > 0) G[i] = i < span.rows ? G[i - 1] + G[i] : G[i - 1];
    qf[i] = bf16_to_float(q[i]);
    kf[i] = bf16_to_float(k[i]);
  }
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int first = group * kGroup;
    if (first >= span.rows) break;
    float up[kGroup] = {1.0f, 0, 0, 0};
#pragma unroll
    for (int t = 1; t < kGroup; ++t) {
#pragma unroll
      for (int u = 0; u < t; ++u) {
        const float decay = exp_decay(G[first + t] - G[first + u]);
        if (u == 0) up[t] = decay;
        s.pair[group][pair_of(t, u)][d] = decay * kf[first + u];
      }
    }
    s.pair[group][kPairs - 1][d] = kf[first + kGroup - 1];
#pragma unroll
    for (int t = 0; t < kGroup; ++t) {
      s.q[first + t][d] = up[t] * qf[first + t];
      s.k[first + t][d] = up[t] * kf[first + t];
    }
    s.since_start[group][d] = exp_decay(G[first]);
#pragma unroll
    for (int before = 0; before < group; ++before)
      s.between[between(group, before)][d] = exp_decay(G[first] - G[before * kGroup + kGroup - 1]);
    if (span.whole()) s.until_end[group][d] = exp_decay(G[kChunk - 1] - G[first + kGroup - 1]);
  }
  if (span.whole()) tile.decay[d] = exp_decay(G[kChunk - 1]);
}

__device__ void add_product(float& sum, const float4& x, const float4& y) {
  sum = __fmaf_rn(x.x, y.x, sum);
  sum = __fmaf_rn(x.y, y.y, sum);
  sum = __fmaf_rn(x.z, y.z, sum);
  sum = __fmaf_rn(x.w, y.w, sum);
}

__device__ float4 times(const float4& x, const float4& y) {
  return {x.x * y.x, x.y * y.y, x.z * y.z, x.w * y.w};
}

__device__ float4 widen(const bf16* x) {
  const uint2 four = *reinterpret_cast<const uint2*>(x);
  return {__uint_as_float(four.x << 16), __uint_as_float(four.x & 0xFFFF0000u), __uint_as_float(four.y << 16),
          __uint_as_float(four.y & 0xFFFF0000u)};
}

// Sums 32 values over the warp at once: lane l gets value l, added with strides 16 … 1.
template <int kStride = kWarp / 2>
__device__ float sum_each(float (&v)[kWarp]) {
  const bool upper = threadIdx.x & kStride;
#pragma unroll
  for (int i = 0; i < kStride; ++i) {
    const float keep = upper ? v[i + kStride] : v[i], give = upper ? v[i] : v[i + kStride];
    v[i] = keep + __shfl_xor_sync(kAllLanes, give, kStride);
  }
  if constexpr (kStride > 1) return sum_each<kStride / 2>(v);
  return v[0];
}

// One warp: row i of M and of A. A lane has four channels.
__device__ void row_products(const KdaChunkLaunch& a, int64_t row, int head, int i, KdaTile& tile,
                             Decayed& s) {
  const int lane = threadIdx.x % kWarp, d = 4 * lane, group = i / kGroup, t = i % kGroup;
  const int64_t at = (row * a.heads + head) * kKdaHead + d;
  const float4 q = widen(a.q + at), k = widen(a.k + at);
  const float4 up_q = *reinterpret_cast<const float4*>(&s.q[i][d]);
  const float4 up_k = *reinterpret_cast<const float4*>(&s.k[i][d]);
  const float beta = a.beta[row * a.heads + head];
  float sum[2 * kChunk] = {};  // M_i0 … M_i15, then A
#pragma unroll
  for (int other = 0; other < kGroups; ++other) {
    if (other < group) {
      const float4 decay = *reinterpret_cast<const float4*>(&s.between[between(group, other)][d]);
      const float4 down_q = times(up_q, decay), down_k = times(up_k, decay);
#pragma unroll
      for (int u = 0; u < kGroup; ++u) {
        const float4 y = *reinterpret_cast<const float4*>(&s.pair[other][pair_of(kGroup - 1, u)][d]);
        add_product(sum[other * kGroup + u], down_q, y);
        add_product(sum[kChunk + other * kGroup + u], down_k, y);
      }
    } else if (other == group) {
#pragma unroll
      for (int u = 0; u < kGroup; ++u) {
        if (u < t) {
          const float4 y = *reinterpret_cast<const float4*>(&s.pair[other][pair_of(t, u)][d]);
          add_product(sum[other * kGroup + u], q, y);
          add_product(sum[kChunk + other * kGroup + u], k, y);
        } else if (u == t) {
          add_product(sum[other * kGroup + u], q, k);
        }
      }
    }
  }
  const float total = sum_each(sum);
  if (lane < kChunk) {
    tile.M[i][lane] = total;
  } else {
    s.A[i][lane - kChunk] = beta * total;
  }
}

// One warp: T by forward substitution, lane j mod 16 its column j. Each T_ij is a chain over ascending l.
__device__ void solve(const ChunkSpan& span, const float (&kept)[kChunk], const Decayed& s, KdaTile& tile) {
  const int j = threadIdx.x % kChunk;
  float sum[kChunk] = {};
#pragma unroll
  for (int l = 0; l < kChunk; ++l) {
    float T = j < l ? -sum[l] : (j == l ? 1.0f : 0.0f);
    if (l < span.old) T = kept[l];
    if (l >= span.rows) T = 0.0f;
    if (threadIdx.x < kChunk) tile.T[l][j] = T;
#pragma unroll
    for (int i = l + 1; i < kChunk; ++i) sum[i] = __fmaf_rn(s.A[i][l], T, sum[i]);
  }
}

__global__ void __launch_bounds__(kThreads) kda_chunk_rows_kernel(const KdaChunkLaunch a) {
  __shared__ Decayed s;
  int index, chunk;
  if (!find_chunk(a, blockIdx.x / a.head_count, index, chunk)) return;
  const int in_launch = static_cast<int>(blockIdx.x % a.head_count), head = a.first_head + in_launch;
  const SequenceRows sequence = a.rows.sequences[index];
  const SlotView slot = a.slots[index];
  const ChunkSpan span(sequence, slot.base, chunk);
  const int64_t place = KdaTiles::first(sequence.first_row, index) + chunk;
  KdaTile& tile = a.tiles[place * a.head_count + in_launch];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;

  for (int i = threadIdx.x; i < kChunk * kChunk; i += kThreads) s.A[0][i] = 0.0f;
  float kept[kChunk] = {};  // rows of T of earlier steps
  if (warp == 0) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (i < span.old)
        kept[i] = slot.T[(int64_t{ring_row(span.start + i)} * a.heads + head) * kChunk + lane % kChunk];
    }
  }
  decay_channel(a, sequence, slot, span, head, tile, s);
  __syncthreads();

  // Rows w, 7 − w, 8 + w and 15 − w: as many products for each warp.
#pragma unroll 1
  for (int n = 0; n < kGroups; ++n) {
    const int i = n / 2 * 8 + (n % 2 ? 7 - warp : warp);
    if (span.is_new(i))
      row_products(a, sequence.first_row + (span.start + i - sequence.start), head, i, tile, s);
  }
  __syncthreads();

  if (warp == 0) {
    solve(span, kept, s, tile);
    return;
  }
  // The other warps write the operands of kda_chunk_state.
  const int r = lane / 4, c = lane % 4;
  for (int n = warp - 1; n < 16; n += kWarps - 1) {
    const int step = n / 2, half = n % 2, i = half * 8 + r, d = step * 16 + 2 * c;
    if (!span.is_new(i)) continue;
    const float2 near = *reinterpret_cast<const float2*>(&s.since_start[i / kGroup][d]);
    const float2 far = *reinterpret_cast<const float2*>(&s.since_start[i / kGroup][d + 8]);
    const float2 k0 = *reinterpret_cast<const float2*>(&s.k[i][d]);
    const float2 k8 = *reinterpret_cast<const float2*>(&s.k[i][d + 8]);
    const float2 q0 = *reinterpret_cast<const float2*>(&s.q[i][d]);
    const float2 q8 = *reinterpret_cast<const float2*>(&s.q[i][d + 8]);
    tile.decayed_k[step][half][lane] = split_b(near.x * k0.x, near.y * k0.y, far.x * k8.x, far.y * k8.y);
    tile.decayed_q[step][half][lane] = split_b(near.x * q0.x, near.y * q0.y, far.x * q8.x, far.y * q8.y);
  }
  if (!span.whole()) return;
  for (int n = warp - 1; n < 16; n += kWarps - 1) {
    const int d = n * 8 + r;
    float x[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int j = 2 * c + e % 2 + e / 2 * 8;
      x[e] = s.pair[j / kGroup][pair_of(kGroup - 1, j % kGroup)][d] * s.until_end[j / kGroup][d];
    }
    tile.commit_k[n][lane] = split_b(x[0], x[1], x[2], x[3]);
  }
}

}  // namespace

void launch_kda_chunk_rows(const KdaChunkLaunch& launch, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(launch.tile_blocks * launch.head_count);
  kda_chunk_rows_kernel<<<blocks, kThreads, 0, stream>>>(launch);
  cuda_check(cudaGetLastError(), "launching kda_chunk_rows");
}

}  // namespace perigee::cuda
