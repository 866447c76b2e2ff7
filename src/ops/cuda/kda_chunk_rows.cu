// kda_chunk_rows: a block for each chunk and head, a warp for each group of four rows, four channels a lane.
// Row i reads rows ≤ i alone.
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/kda_chunk.cuh"
#include "ops/cuda/kda_terms.cuh"

namespace perigee::cuda {
namespace {

constexpr int kWarps = kGroups, kThreads = kWarps * kWarp;

struct RowsShared {
  float since_first_q[kChunk - kGroup][kKdaHead];  // rows 4 …: e^{G_i−G_a} q_i, a the first row of the group
  float since_first_k[kChunk - kGroup][kKdaHead];
  float until_last_k[kChunk][kKdaHead];  // e^{G_b−G_j} k_j, b the last row; at the end e^{G_15−G_j} k_j
  float first[kGroups][kKdaHead];        // e^{g_a}
  float whole[kGroups][kKdaHead];        // the decay over a group
  float sum[kGroups][kKdaHead];          // of g over a group
  alignas(16) float A[kChunk][kChunk];   // transposed: [l][i]
  alignas(16) float M[kChunk][kChunk];
  alignas(16) float T[kChunk][kChunk];
  float beta[kChunk];
};

__device__ float4& at_lane(float (&row)[kKdaHead]) {
  return *reinterpret_cast<float4*>(&row[4 * (threadIdx.x % kWarp)]);
}

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
  return !kda_decodes(s) && chunk < chunks_of(s, a.slots[sequence].base);
}

// One warp: M and A of rows t and t + 1 of group g with the rows of an earlier group.
__device__ void sums_between(RowsShared& s, int g, int earlier, int t) {
  const int lane = threadIdx.x % kWarp, row = kGroup * g + t;
  const float4 decay =
      decay_between(at_lane(s.first[g]), [&](int h) { return at_lane(s.whole[h]); }, g, earlier);
  float4 x[2][2];  // [M, A][row]
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    x[0][n] = times(at_lane(s.since_first_q[row + n - kGroup]), decay);
    x[1][n] = times(at_lane(s.since_first_k[row + n - kGroup]), decay);
  }
  float sum[16] = {};
#pragma unroll
  for (int u = 0; u < kGroup; ++u) {
    const float4 y = at_lane(s.until_last_k[kGroup * earlier + u]);
#pragma unroll
    for (int n = 0; n < 4; ++n) add_product(sum[4 * n + u], x[n / 2][n % 2], y);
  }
  const float total = sum_each(sum);
  if (lane % 2) return;
  const int i = row + lane / 8 % 2, j = kGroup * earlier + lane / 2 % 4;
  if (lane < kWarp / 2) {
    s.M[i][j] = total;
  } else {
    s.A[j][i] = s.beta[i] * total;
  }
}

// One warp: T by forward substitution, lane j mod 16 its column j. Each T_ij is a chain over ascending l.
__device__ void solve(const ChunkSpan& span, const float (&kept)[kChunk], RowsShared& s) {
  const int j = threadIdx.x % kChunk;
  float sum[kChunk] = {};
#pragma unroll
  for (int l = 0; l < kChunk; ++l) {
    float T = j < l ? -sum[l] : (j == l ? 1.0f : 0.0f);
    if (l < span.old) T = kept[l];
    if (l >= span.rows) T = 0.0f;
    s.T[l][j] = T;
#pragma unroll
    for (int i = l + 1; i < kChunk; ++i) sum[i] = __fmaf_rn(s.A[l][i], T, sum[i]);
  }
}

__global__ void __launch_bounds__(kThreads, 4) kda_chunk_rows_kernel(const KdaChunkLaunch a) {
  __shared__ RowsShared s;
  int index, chunk;
  if (!find_chunk(a, blockIdx.x / a.head_count, index, chunk)) return;
  const int in_launch = static_cast<int>(blockIdx.x % a.head_count), head = a.first_head + in_launch;
  const SequenceRows sequence = a.rows.sequences[index];
  const SlotView slot = a.slots[index];
  const ChunkSpan span(sequence, slot.base, chunk);
  const int64_t place = KdaTiles::first(sequence.first_row, index) + chunk;
  KdaTile& tile = a.tiles[place * a.head_count + in_launch];
  const int group = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, first = kGroup * group;
  const int64_t D = int64_t{a.heads} * kKdaHead, column = head * kKdaHead + 4 * lane;
  const int64_t row0 = sequence.first_row + (span.start - sequence.start);  // of row 0, were it new

  // This warp's rows; those that do not exist are zeros.
  KeyRow key[kGroup];
  uint2 query[kGroup];
#pragma unroll
  for (int t = 0; t < kGroup; ++t) {
    const int i = first + t;
    key[t] = {};
    query[t] = {};
    if (span.is_new(i)) {
      key[t] = load_key(a.k, a.g, (row0 + i) * D + column);
      query[t] = *reinterpret_cast<const uint2*>(a.q + (row0 + i) * D + column);
    } else if (i < span.old) {
      key[t] = load_key(slot.k, slot.g, ring_row(span.start + i) * D + column);
    }
  }
  if (threadIdx.x < kChunk) {
    const int i = threadIdx.x;
    s.beta[i] = span.is_new(i) ? a.beta[(row0 + i) * a.heads + head] : 0.0f;
  }
  float kept[kChunk] = {};  // rows of T of earlier steps
  if (group == kWarps - 1) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (i < span.old)
        kept[i] = slot.T[(int64_t{ring_row(span.start + i)} * a.heads + head) * kChunk + lane % kChunk];
    }
  }

  float4 factor[kGroup], q[kGroup], k[kGroup];
#pragma unroll
  for (int t = 0; t < kGroup; ++t)
    factor[t] = decay_of(key[t].g), q[t] = widen(query[t]), k[t] = widen(key[t].k);
  const auto e = [&](int l) { return factor[l]; };
  at_lane(s.first[group]) = factor[0];
  at_lane(s.whole[group]) = decay_whole(e);
  at_lane(s.sum[group]) = plus(plus(plus(key[0].g, key[1].g), key[2].g), key[3].g);

  // Inside the group: M_tu at [t][u], and A_tu (u < t) at [u][t].
  float sum[kGroup * kGroup] = {};
#pragma unroll
  for (int t = 0; t < kGroup; ++t) {
    add_product(sum[kGroup * t + t], q[t], k[t]);
#pragma unroll
    for (int u = 0; u < t; ++u) {
      const float4 y = times(decay_inside(e, t, u), k[u]);
      add_product(sum[kGroup * t + u], q[t], y);
      add_product(sum[kGroup * u + t], k[t], y);
    }
  }
  const float inside = sum_each(sum);
#pragma unroll
  for (int t = 0; t < kGroup; ++t) {
    at_lane(s.until_last_k[first + t]) = times(decay_down(e, t), k[t]);
    const float4 up = decay_up(e, t);
    q[t] = times(up, q[t]), k[t] = times(up, k[t]);
    if (group > 0) {
      at_lane(s.since_first_q[first + t - kGroup]) = q[t];
      at_lane(s.since_first_k[first + t - kGroup]) = k[t];
    }
  }
  __syncthreads();

  if (lane % 2 == 0) {
    const int x = lane / 2 / kGroup, y = lane / 2 % kGroup;
    if (y <= x) {
      s.M[first + x][first + y] = inside;
    } else {
      s.A[first + x][first + y] = s.beta[first + y] * inside;
    }
  }
  const auto whole = [&](int h) { return at_lane(s.whole[h]); };
  const float4 since_start = decay_since_start(factor[0], whole, group);
#pragma unroll
  for (int t = 0; t < kGroup; ++t) {
    const int i = first + t, to = 4 * column_of(i) + lane % 4;
    tile.decayed_k[lane / 4][tile_of(i)][to] = split_b(times(since_start, k[t]));
    tile.decayed_q[lane / 4][tile_of(i)][to] = split_b(times(since_start, q[t]));
  }
  // Pairs of groups in halves of two rows: as many for each warp.
#pragma unroll 1
  for (int unit = group; unit < 12; unit += kWarps) {
    const int pair = unit / 2, g = pair < 1 ? 1 : pair < 3 ? 2 : 3, t = unit % 2 * 2;
    if (span.has_new(kGroup * g + t, 2)) sums_between(s, g, pair - g * (g - 1) / 2, t);
  }
  __syncthreads();

  if (group == kWarps - 1) solve(span, kept, s);
  if (span.whole()) {
    const float4 until_end = decay_until_end(whole, group);
#pragma unroll
    for (int t = 0; t < kGroup; ++t) {
      float4& x = at_lane(s.until_last_k[first + t]);
      x = times(until_end, x);
    }
    const int d = threadIdx.x;
    tile.decay[d] = exp_decay(((s.sum[0][d] + s.sum[1][d]) + s.sum[2][d]) + s.sum[3][d]);
  }
  __syncthreads();

  if (threadIdx.x < kChunk) tile.beta[threadIdx.x] = s.beta[threadIdx.x];
  if (span.start + kChunk > keep_from(sequence, slot.base) && threadIdx.x < kChunk * kChunk / 4)
    reinterpret_cast<float4*>(tile.T)[threadIdx.x] = reinterpret_cast<const float4*>(s.T)[threadIdx.x];
  if (group >= kWarps / 2) {  // M' = M T; four columns of a row a thread
    const int i = (threadIdx.x - kThreads / 2) / 4, c = threadIdx.x % 4;
    float4 row = {};
#pragma unroll
    for (int l = 0; l < kChunk; ++l) {
      if (l <= i) add_scaled(row, s.M[i][l], *reinterpret_cast<const float4*>(&s.T[l][4 * c]));
    }
    tile.M[tile_of(i)][4 * column_of(i) + c] = span.is_new(i) ? split_b(row) : SplitB{};
  }
  if (!span.whole()) return;
  // k'_j = Σ_i T_ij e^{G_15−G_i} k_i for the rows j of the group; rows i before them have zeros there.
  float4 sum_k[kGroup] = {};
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if (i < first) continue;
    const float4 y = at_lane(s.until_last_k[i]);
    const float4 T = *reinterpret_cast<const float4*>(&s.T[i][first]);
    add_scaled(sum_k[0], T.x, y);
    add_scaled(sum_k[1], T.y, y);
    add_scaled(sum_k[2], T.z, y);
    add_scaled(sum_k[3], T.w, y);
  }
  const float(&x)[kGroup][4] = reinterpret_cast<const float(&)[kGroup][4]>(sum_k);
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const int d = 4 * lane + n;
    tile.commit_k[d / 16][tile_of(d % 16)][4 * column_of(d % 16) + group] =
        split_b(x[0][n], x[1][n], x[2][n], x[3][n]);
  }
}

}  // namespace

void launch_kda_chunk_rows(const KdaChunkLaunch& launch, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(launch.tile_blocks * launch.head_count);
  kda_chunk_rows_kernel<<<blocks, kThreads, 0, stream>>>(launch);
  cuda_check(cudaGetLastError(), "launching kda_chunk_rows");
}

}  // namespace perigee::cuda
