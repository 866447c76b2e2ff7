// kda_decode: kda_chunk for sequences with few rows in a step, in one kernel: a block for each sequence, head
// and slice of value columns. All of the slice's state is on its way to shared memory before the block looks
// at anything else, and before the kernel ahead of it has ended; meanwhile eight warps make M, A and the
// decayed rows. Then a warp has 16 value columns and all keys. Chunks after the first (a draft may pass the
// end of one) go through the same steps with the state in shared memory.
#include <algorithm>

#include "ops/cuda/bulk_copies.cuh"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/fragments.cuh"
#include "ops/cuda/kda_chunk.cuh"
#include "ops/cuda/kda_terms.cuh"
#include "ops/cuda/overlap.cuh"

namespace perigee::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kRowsOfWarp = kChunk / kWarps;
constexpr int kWarpColumns = 16;
constexpr int kQuarters = 4;  // of the key channels: chains of their own
constexpr int kSteps = kKdaHead / 16;
constexpr int kPacked = 4;  // new rows up to which keys and queries share one tile of 8 columns

template <int kColumns>
struct DecodeShared {
  alignas(16) float S[kKdaHead][kColumns];  // pieces of four columns permuted: see piece()
  alignas(16) float w[kChunk][kColumns];
  alignas(16) float factor[kChunk][kKdaHead];  // e^{g}; for the commit e^{G_15−G_j} k_j
  union {
    SplitB rows[2][kSteps][kWarp];    // new rows as B[k = d, n]: keys, queries, or both in the first
    SplitB commit[kSteps][2][kWarp];  // as KdaTile's
  };
  alignas(16) bf16 k[kChunk][kKdaHead];
  alignas(16) bf16 q[kKdaDecodeRows][kKdaHead];
  float decay[kKdaHead];
  alignas(16) float T[kChunk][kChunk];
  float A[kKdaDecodeRows][kChunk];
  float M[kKdaDecodeRows][kChunk];
  alignas(16) float MT[kKdaDecodeRows][kChunk];
  float beta[kKdaDecodeRows];
};

// Where columns 4·piece … of a key lie: the keys of a quad's threads, four apart, in different banks.
__device__ int piece(int key, int piece) { return 4 * (piece ^ (key / 4 % 4 * 2)); }

__device__ float4& at_lane(float (&row)[kKdaHead]) {
  return *reinterpret_cast<float4*>(&row[4 * (threadIdx.x % kWarp)]);
}
__device__ uint2& at_lane(bf16 (&row)[kKdaHead]) {
  return *reinterpret_cast<uint2*>(&row[4 * (threadIdx.x % kWarp)]);
}

// One warp: M and A of new row n with the rows of one group.
template <typename Shared>
__device__ void sums_with_group(Shared& s, const ChunkSpan& span, int n, int group) {
  const int lane = threadIdx.x % kWarp, i = span.old + n, own = i / kGroup, t = i % kGroup;
  const auto factors = [&](int g) { return [&s, g](int l) { return at_lane(s.factor[kGroup * g + l]); }; };
  const auto whole = [&](int h) { return decay_whole(factors(h)); };
  const auto k = [&](int row) { return widen(at_lane(s.k[row])); };
  float4 q_i = widen(at_lane(s.q[n])), k_i = k(i);
  float sum[2 * kGroup] = {};  // M, A
  if (group < own) {
    const float4 up = decay_up(factors(own), t);
    const float4 between = decay_between(at_lane(s.factor[kGroup * own]), whole, own, group);
    q_i = times(times(up, q_i), between), k_i = times(times(up, k_i), between);
#pragma unroll
    for (int u = 0; u < kGroup; ++u) {
      const float4 y = times(decay_down(factors(group), u), k(kGroup * group + u));
      add_product(sum[u], q_i, y);
      add_product(sum[kGroup + u], k_i, y);
    }
  } else {
#pragma unroll
    for (int u = 0; u < kGroup; ++u) {
      if (u < t) {
        const float4 y = times(decay_inside(factors(group), t, u), k(kGroup * group + u));
        add_product(sum[u], q_i, y);
        add_product(sum[kGroup + u], k_i, y);
      } else if (u == t) {
        add_product(sum[u], q_i, k_i);
      }
    }
  }
  const float total = sum_each(sum);
  if (lane % 4) return;
  const int u = lane / 4 % kGroup;
  if (lane < kWarp / 2) {
    s.M[n][kGroup * group + u] = total;
  } else {
    s.A[n][kGroup * group + u] = s.beta[n] * total;
  }
}

// One warp: e^{G_i} ⊙ k_i and e^{G_i} ⊙ q_i of new row n.
template <typename Shared>
__device__ void decay_row(Shared& s, const ChunkSpan& span, int n, bool packed) {
  const int lane = threadIdx.x % kWarp, i = span.old + n, group = i / kGroup;
  const auto factors = [&](int g) { return [&s, g](int l) { return at_lane(s.factor[kGroup * g + l]); }; };
  const auto whole = [&](int h) { return decay_whole(factors(h)); };
  const float4 up = decay_up(factors(group), i % kGroup);
  const float4 since_start = decay_since_start(at_lane(s.factor[kGroup * group]), whole, group);
  const float4 k = times(since_start, times(up, widen(at_lane(s.k[i]))));
  const float4 q = times(since_start, times(up, widen(at_lane(s.q[n]))));
  s.rows[0][lane / 4][4 * n + lane % 4] = split_b(k);
  s.rows[packed ? 0 : 1][lane / 4][4 * (packed ? kPacked + n : n) + lane % 4] = split_b(q);
}

// One warp: T of the new rows by forward substitution, lane j mod 16 its column j; then M' = M T.
template <typename Shared>
__device__ void solve(Shared& s, const ChunkSpan& span, int fresh) {
  const int j = threadIdx.x % kChunk;
  for (int n = 0; n < fresh; ++n) {
    const int i = span.old + n;
    float sum = 0.0f;
#pragma unroll
    for (int l = 0; l < kChunk; ++l) {
      if (l < i) sum = __fmaf_rn(s.A[n][l], s.T[l][j], sum);
    }
    __syncwarp();
    s.T[i][j] = j < i ? -sum : (j == i ? 1.0f : 0.0f);
    __syncwarp();
  }
  for (int n = 0; n < fresh; ++n) {
    float sum = 0.0f;
#pragma unroll
    for (int l = 0; l < kChunk; ++l) {
      if (l <= span.old + n) sum = __fmaf_rn(s.M[n][l], s.T[l][j], sum);
    }
    s.MT[n][j] = sum;
  }
}

// Sixteen keys of a warp's value columns as an operand.
template <typename Shared>
__device__ SplitA load_state(const Shared& s, int step) {
  const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4,
            column = threadIdx.x / kWarp * kWarpColumns + 2 * r;
  float2 x[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const int key = 16 * step + 4 * c + n;
    x[n] = *reinterpret_cast<const float2*>(&s.S[key][piece(key, column / 4) + column % 4]);
  }
  return split_a({x[0].x, x[1].x, x[0].y, x[1].y}, {x[2].x, x[3].x, x[2].y, x[3].y});
}

template <int kColumns>
__global__ void __launch_bounds__(kThreads, 2) kda_decode_kernel(const KdaChunkLaunch a) {
  constexpr int kSlices = kKdaHead / kColumns, kPieces = kColumns / 4;
  extern __shared__ __align__(128) unsigned char shared[];
  auto& s = *reinterpret_cast<DecodeShared<kColumns>*>(shared);

  const int head = blockIdx.x / kSlices, slice = blockIdx.x % kSlices, index = blockIdx.y;
  const SequenceRows sequence = a.rows.sequences[index];
  const SlotView slot = a.slots[index];
  if (!kda_decodes(sequence) || sequence.rows == 0) {
    wait_for_previous();  // so that this kernel never ends before the one ahead
    return;
  }
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
  const int64_t D = int64_t{a.heads} * kKdaHead, head_column = head * kKdaHead + 4 * lane;
  const int64_t slice_column = head * kKdaHead + slice * kColumns;
  const int column = warp * kWarpColumns + 2 * r;  // of this thread in the slice, where its warp has columns
  const bool has_columns = warp < kColumns / kWarpColumns;

  const float* state = slot.state + head * slot.state_stride + slice * kColumns;
  for (int n = threadIdx.x; n < kKdaHead * kPieces; n += kThreads) {
    const int key = n / kPieces, p = n % kPieces;
    copy_16(&s.S[key][piece(key, p)], state + key * kKdaHead + 4 * p, true);
  }
  const int64_t end = sequence.start + sequence.rows;
  const int64_t accepted_end = sequence.accepted / kChunk * kChunk;
  const int64_t kept_from = keep_from(sequence, slot.base);
  const int chunks = chunks_of(sequence, slot.base);
  // Whether a new row takes the place of one that other blocks of the head still read.
  const bool wide = kSlices > 1 && end - slot.base > KdaSlot::kRing;

  for (int chunk = 0; chunk < chunks; ++chunk) {
    const bool last = chunk + 1 == chunks;
    const ChunkSpan span(sequence, slot.base, chunk);
    const int fresh = max(span.rows - span.old, 0);
    const bool packed = fresh <= kPacked;
    const bool stores = span.whole() && slot.stored != nullptr && span.start + kChunk == accepted_end;
    const bool commits = span.whole() && (stores || !last);
    const int64_t row0 = sequence.first_row + (span.start - sequence.start);  // of row 0, were it new

    // What the ring has, then the step's own rows.
    for (int n = threadIdx.x; n < span.old * kPieces; n += kThreads) {
      const int i = n / kPieces, p = n % kPieces;
      copy_16(&s.w[i][4 * p], slot.w + ring_row(span.start + i) * D + slice_column + 4 * p, true);
    }
    KeyRow key[kRowsOfWarp] = {};
    float T[kRowsOfWarp] = {};
#pragma unroll
    for (int m = 0; m < kRowsOfWarp; ++m) {
      const int i = warp + m * kWarps, at = ring_row(span.start + i);
      if (i >= span.old) continue;
      key[m] = load_key(slot.k, slot.g, at * D + head_column);
      T[m] = slot.T[(int64_t{at} * a.heads + head) * kChunk + lane % kChunk];
    }
    if (chunk == 0) begin_in_turn();
    uint2 query[kRowsOfWarp] = {};
    float v[2][2] = {};  // [row 2c + e][column]
#pragma unroll
    for (int m = 0; m < kRowsOfWarp; ++m) {
      const int i = warp + m * kWarps;
      if (!span.is_new(i)) continue;
      const int64_t at = (row0 + i) * D + head_column;
      key[m] = load_key(a.k, a.g, at);
      query[m] = *reinterpret_cast<const uint2*>(a.q + at);
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int n = 2 * c + e;
      if (!has_columns || n >= fresh) continue;
      const uint32_t pair =
          *reinterpret_cast<const uint32_t*>(a.v + (row0 + span.old + n) * D + slice_column + column);
      v[e][0] = __uint_as_float(pair << 16), v[e][1] = __uint_as_float(pair & 0xFFFF0000u);
    }
    if (threadIdx.x < fresh) s.beta[threadIdx.x] = a.beta[(row0 + span.old + threadIdx.x) * a.heads + head];
#pragma unroll
    for (int m = 0; m < kRowsOfWarp; ++m) {
      const int i = warp + m * kWarps;
      at_lane(s.factor[i]) = decay_of(key[m].g);
      at_lane(s.k[i]) = key[m].k;
      if (span.is_new(i)) at_lane(s.q[i - span.old]) = query[m];
      if (lane < kChunk) s.T[i][lane] = T[m];
    }
    if (commits && threadIdx.x < kKdaHead) {
      const int d = threadIdx.x;
      float sum[kGroups];
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        const float g = i < span.old ? slot.g[ring_row(span.start + i) * D + head * kKdaHead + d]
                                     : a.g[(row0 + i) * D + head * kKdaHead + d];
        sum[i / kGroup] = i % kGroup == 0 ? g : sum[i / kGroup] + g;
      }
      s.decay[d] = exp_decay(((sum[0] + sum[1]) + sum[2]) + sum[3]);
    }
    __syncthreads();

    if (wide && fresh > 0) sync_cluster();
    if (slice == 0) {
#pragma unroll
      for (int m = 0; m < kRowsOfWarp; ++m) {
        const int i = warp + m * kWarps;
        if (!span.is_new(i)) continue;
        const int64_t to = ring_row(span.start + i) * D + head_column;
#pragma unroll
        for (int part = 0; part < 3; ++part) {
          *reinterpret_cast<uint2*>(slot.conv_input + (ring_row(span.start + i) * 3 + part) * D +
                                    head_column) =
              *reinterpret_cast<const uint2*>(a.conv_input + ((row0 + i) * 3 + part) * D + head_column);
        }
        if (span.start + i < kept_from) continue;
        *reinterpret_cast<uint2*>(slot.k + to) = key[m].k;
        *reinterpret_cast<float4*>(slot.g + to) = key[m].g;
      }
    }
    for (int unit = warp; unit < fresh * (kGroups + 1); unit += kWarps) {
      const int n = unit / (kGroups + 1), part = unit % (kGroups + 1);
      if (part == kGroups) {
        decay_row(s, span, n, packed);
      } else if (part <= (span.old + n) / kGroup) {
        sums_with_group(s, span, n, part);
      }
    }
    commit_copies();
    wait_copies<0>();
    __syncthreads();

    if (warp == kWarps - 1 && fresh > 0) solve(s, span, fresh);
    float predicted[4] = {}, from_state[4] = {};
    if (has_columns && fresh > 0) {
      float key_part[kQuarters][4], query_part[kQuarters][4];
#pragma unroll
      for (int quarter = 0; quarter < kQuarters; ++quarter) {
        SplitSum keys, queries;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int step = 2 * quarter + half;
          const SplitA state_part = load_state(s, step);
          keys.add(state_part, s.rows[0][step][lane]);
          if (!packed) queries.add(state_part, s.rows[1][step][lane]);
        }
#pragma unroll
        for (int n = 0; n < 4; ++n) key_part[quarter][n] = keys[n], query_part[quarter][n] = queries[n];
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        predicted[n] = (key_part[0][n] + key_part[1][n]) + (key_part[2][n] + key_part[3][n]);
        from_state[n] = packed
                            ? predicted[n]
                            : (query_part[0][n] + query_part[1][n]) + (query_part[2][n] + query_part[3][n]);
      }
    }
    __syncthreads();

    if (slice == 0 && threadIdx.x < fresh * kChunk) {
      const int i = span.old + threadIdx.x / kChunk, j = threadIdx.x % kChunk;
      if (span.start + i >= kept_from)
        slot.T[(int64_t{ring_row(span.start + i)} * a.heads + head) * kChunk + j] = s.T[i][j];
    }
    SplitA w_operand = {};
    if (has_columns) {
      // w = β (v − predicted); of older rows, what the ring kept.
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int n = 2 * c + e;
        if (n >= fresh) continue;
        const int i = span.old + n;
        const float2 w = {s.beta[n] * (v[e][0] - predicted[e]), s.beta[n] * (v[e][1] - predicted[2 + e])};
        *reinterpret_cast<float2*>(&s.w[i][column]) = w;
        if (span.start + i >= kept_from)
          *reinterpret_cast<float2*>(slot.w + ring_row(span.start + i) * D + slice_column + column) = w;
      }
      __syncwarp();
      float w[2][4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int i = 4 * c + n;
        float2 x = {0.0f, 0.0f};
        if (i < span.rows) x = *reinterpret_cast<const float2*>(&s.w[i][column]);
        w[n / 2][n % 2] = x.x, w[n / 2][2 + n % 2] = x.y;
      }
      w_operand = split_a(w[0], w[1]);
      if (fresh > 0) {
        const int first = packed ? kPacked : 0, of_lane = r - first, out0 = 2 * c - first;
        SplitB M = {};
        if (of_lane >= 0 && of_lane < fresh)
          M = split_b(*reinterpret_cast<const float4*>(&s.MT[of_lane][4 * c]));
        const int rows[2] = {span.old + max(out0, 0), span.old + max(out0, 0) + 1};
        add_rows(from_state, w, w_operand, M, rows);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int n = out0 + e;
          if (n < 0 || n >= fresh) continue;
          *reinterpret_cast<float2*>(a.out + (row0 + span.old + n) * D + slice_column + column) = {
              from_state[e], from_state[2 + e]};
        }
      }
    }
    if (!commits) {
      __syncthreads();
      continue;
    }

    // S ← e^{G_15} ⊙ S + Σ_j k'_j w_jᵀ.
    float4 until_end[kRowsOfWarp];
#pragma unroll
    for (int m = 0; m < kRowsOfWarp; ++m) {
      const int i = warp + m * kWarps, group = i / kGroup;
      const auto factors = [&](int g) {
        return [&s, g](int l) { return at_lane(s.factor[kGroup * g + l]); };
      };
      const auto whole = [&](int h) { return decay_whole(factors(h)); };
      until_end[m] = times(decay_until_end(whole, group),
                           times(decay_down(factors(group), i % kGroup), widen(at_lane(s.k[i]))));
    }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < kRowsOfWarp; ++m) at_lane(s.factor[warp + m * kWarps]) = until_end[m];
    __syncthreads();
    if (warp < kGroups) {
      float4 sum_k[kGroup] = {};
#pragma unroll 4
      for (int i = kGroup * warp; i < kChunk; ++i) {
        const float4 y = at_lane(s.factor[i]), T_i = *reinterpret_cast<const float4*>(&s.T[i][kGroup * warp]);
        add_scaled(sum_k[0], T_i.x, y);
        add_scaled(sum_k[1], T_i.y, y);
        add_scaled(sum_k[2], T_i.z, y);
        add_scaled(sum_k[3], T_i.w, y);
      }
      const float(&x)[kGroup][4] = reinterpret_cast<const float(&)[kGroup][4]>(sum_k);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int d = 4 * lane + n;
        s.commit[d / 16][tile_of(d % 16)][4 * column_of(d % 16) + warp] =
            split_b(x[0][n], x[1][n], x[2][n], x[3][n]);
      }
    }
    __syncthreads();
    if (has_columns) {
      float* stored = slot.stored + head * slot.stored_stride + slice * kColumns;
#pragma unroll 4
      for (int tile = 0; tile < 2 * kSteps; ++tile) {
        float added[4] = {};
        add_split(added, w_operand, s.commit[tile / 2][tile % 2][lane]);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key = tile / 2 * 16 + sixteen(tile % 2, 2 * c + e);
          float2& S = *reinterpret_cast<float2*>(&s.S[key][piece(key, column / 4) + column % 4]);
          S = {__fmaf_rn(s.decay[key], S.x, added[e]), __fmaf_rn(s.decay[key], S.y, added[2 + e])};
          if (stores) *reinterpret_cast<float2*>(stored + key * kKdaHead + column) = S;
        }
      }
    }
    __syncthreads();
  }
}

template <int kColumns>
void launch(const KdaChunkLaunch& parameters, cudaStream_t stream) {
  constexpr int kSlices = kKdaHead / kColumns, kBytes = sizeof(DecodeShared<kColumns>);
  static const cudaError_t raised =
      cudaFuncSetAttribute(kda_decode_kernel<kColumns>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  cuda_check(raised, "cudaFuncSetAttribute");
  const dim3 grid(static_cast<unsigned>(parameters.heads * kSlices),
                  static_cast<unsigned>(parameters.rows.count));
  launch_overlapping(
      kda_decode_kernel<kColumns>,
      {.grid = grid, .threads = kThreads, .shared_bytes = kBytes, .cluster = unsigned{kSlices}}, stream,
      parameters);
}

}  // namespace

void launch_kda_decode(const KdaChunkLaunch& parameters, cudaStream_t stream) {
  constexpr int kManyHeads = 256;  // from here on whole heads fill the multiprocessors
  if (PERIGEE_SM90 && parameters.heads * parameters.rows.count < kManyHeads) {
    launch<32>(parameters, stream);
  } else {
    launch<128>(parameters, stream);
  }
}

}  // namespace perigee::cuda
