// attn_res_mix on any GPU since sm_80. One block a row: the row of every source is read once, 16 bytes a
// load, and stays in registers between the scores and the mix. The order of every sum follows from `hidden`
// alone: ascending columns in a thread, a fixed tree in a warp, ascending warps.
#include <cstdint>
#include <utility>

#include "ops/cuda/attn_res_mix.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/elementary.h"

namespace perigee::cuda {
namespace {

constexpr int kChunks = 2;  // a thread's: chunk c of thread t holds columns 8·(c·threads + t) + 0..7
constexpr int kMaxThreads = kMaxHidden / (kChunks * kChunkColumns);
constexpr int kMaxWarps = kMaxThreads / kWarp;

struct alignas(16) Chunk {
  uint32_t pair[kChunkColumns / 2];  // bf16, the earlier column in the low half
  __device__ float operator[](int i) const {
    return __uint_as_float(i % 2 ? pair[i / 2] & 0xFFFF0000u : pair[i / 2] << 16);
  }
};

template <int kSources>
struct Parameters {
  const bf16* source[kSources];  // each [R, hidden]: the banks, then the stream
  const float* score;            // [hidden]
  const float* norm;             // [hidden]
  bf16* out;                     // [R, hidden]
  float eps;
  int hidden;
  unsigned blocks_at_once;  // multiprocessors: a block of the widest rows fills one
};

// The same tree for two sums at the price of one: after the stride of 16 the lower lanes hold a's, the upper
// b's.
__device__ float warp_sum_pair(float a, float b) {
  const bool upper = threadIdx.x & 16;
  float x = upper ? b : a;
  x += __shfl_xor_sync(kAllLanes, upper ? a : b, 16);
  for (int stride = 8; stride > 0; stride /= 2) x += __shfl_xor_sync(kAllLanes, x, stride);
  return x;
}

template <int kSources>
__global__ void __launch_bounds__(kMaxThreads) attn_res_mix_kernel(const Parameters<kSources> a) {
  __shared__ float squares_of_warp[kSources][kMaxWarps + 1];  // + 1: sources lie in different banks of memory
  __shared__ float weighted_of_warp[kSources][kMaxWarps + 1];
  __shared__ float mix_weight[kSources];
  __shared__ float mix_squares_of_warp[kMaxWarps];
  begin_in_turn();
  const int64_t row = int64_t{blockIdx.x} * a.hidden;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;

  int column[kChunks];
  bool inside[kChunks];
  Chunk v[kSources][kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    column[c] = (c * blockDim.x + threadIdx.x) * kChunkColumns;
    inside[c] = column[c] < a.hidden;
  }
#pragma unroll
  for (int j = 0; j < kSources; ++j) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {  // columns past the end are zeros: they add nothing to any sum
      v[j][c] = inside[c] ? *reinterpret_cast<const Chunk*>(a.source[j] + row + column[c]) : Chunk{};
    }
  }
  // A multiprocessor holds one wide row, so that its loads would wait for the sums of the row before: fetch
  // the row that comes next here into L2 meanwhile. One request a 128-byte line.
  if (blockIdx.x + a.blocks_at_once < gridDim.x && lane % 8 == 0) {
    const int64_t next = row + int64_t{a.blocks_at_once} * a.hidden;
#pragma unroll
    for (int j = 0; j < kSources; ++j) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        if (inside[c]) asm volatile("prefetch.global.L2 [%0];" ::"l"(a.source[j] + next + column[c]));
      }
    }
  }

  if constexpr (kSources > 1) {
    float score[kChunks][kChunkColumns] = {};
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (!inside[c]) continue;
#pragma unroll
      for (int i = 0; i < kChunkColumns; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(a.score + column[c] + i);
        score[c][i] = four.x, score[c][i + 1] = four.y, score[c][i + 2] = four.z, score[c][i + 3] = four.w;
      }
    }
#pragma unroll
    for (int j = 0; j < kSources; ++j) {
      float squares = 0.0f, weighted = 0.0f;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
#pragma unroll
        for (int i = 0; i < kChunkColumns; ++i) {
          squares = __fmaf_rn(v[j][c][i], v[j][c][i], squares);
          weighted = __fmaf_rn(v[j][c][i], score[c][i], weighted);
        }
      }
      const float sum = warp_sum_pair(squares, weighted);
      if (lane == 0) squares_of_warp[j][warp] = sum;
      if (lane == 16) weighted_of_warp[j][warp] = sum;
    }
    __syncthreads();
    if (warp == 0) {  // softmax, lane j for source j
      float s = -__uint_as_float(0x7F800000u);
      if (lane < kSources) {
        float squares = 0.0f, weighted = 0.0f;
        for (int w = 0; w < warps; ++w) {
          squares += squares_of_warp[lane][w];
          weighted += weighted_of_warp[lane][w];
        }
        s = rsqrt(__fdiv_rn(squares, static_cast<float>(a.hidden)) + a.eps) * weighted;
      }
      const float e = exp(s - warp_max(s));
      float total = 0.0f;
#pragma unroll
      for (int j = 0; j < kSources; ++j) total += __shfl_sync(kAllLanes, e, j);
      if (lane < kSources) mix_weight[lane] = __fdiv_rn(e, total);
    }
    __syncthreads();
  }

  float mix[kChunks][kChunkColumns] = {};
  float squares = 0.0f;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (int i = 0; i < kChunkColumns; ++i) {
      if constexpr (kSources == 1) {
        mix[c][i] = v[0][c][i];
      } else {
#pragma unroll
        for (int j = 0; j < kSources; ++j) mix[c][i] = __fmaf_rn(mix_weight[j], v[j][c][i], mix[c][i]);
      }
      squares = __fmaf_rn(mix[c][i], mix[c][i], squares);
    }
  }
  squares = warp_sum(squares);
  if (lane == 0) mix_squares_of_warp[warp] = squares;
  __syncthreads();
  float total = 0.0f;
  for (int w = 0; w < warps; ++w) total += mix_squares_of_warp[w];
  const float scale = rsqrt(__fdiv_rn(total, static_cast<float>(a.hidden)) + a.eps);

#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (!inside[c]) continue;
    Chunk y;
#pragma unroll
    for (int i = 0; i < kChunkColumns; i += 4) {
      const float4 norm = *reinterpret_cast<const float4*>(a.norm + column[c] + i);
      const float* m = mix[c] + i;
      y.pair[i / 2] = float_to_bf16(m[0] * scale * norm.x) | uint32_t{float_to_bf16(m[1] * scale * norm.y)}
                                                                 << 16;
      y.pair[i / 2 + 1] =
          float_to_bf16(m[2] * scale * norm.z) | uint32_t{float_to_bf16(m[3] * scale * norm.w)} << 16;
    }
    *reinterpret_cast<Chunk*>(a.out + row + column[c]) = y;
  }
}

unsigned multiprocessors() {
  static const int count = device_attribute(cudaDevAttrMultiProcessorCount);
  return static_cast<unsigned>(count);
}

template <int kSources>
void launch(const AttnResMixArgs& args, cudaStream_t stream) {
  Parameters<kSources> p{.source = {},
                         .score = args.score,
                         .norm = args.norm,
                         .out = args.out,
                         .eps = args.eps,
                         .hidden = args.hidden,
                         .blocks_at_once = multiprocessors()};
  for (int j = 0; j + 1 < kSources; ++j) p.source[j] = args.banks[j];
  p.source[kSources - 1] = args.stream;
  constexpr int kWarpColumns = kWarp * kChunks * kChunkColumns;
  const int threads = (args.hidden + kWarpColumns - 1) / kWarpColumns * kWarp;
  launch_overlapping(attn_res_mix_kernel<kSources>, {.grid = dim3(args.rows), .threads = threads}, stream, p);
}

}  // namespace

void launch_attn_res_mix(const AttnResMixArgs& args, cudaStream_t stream) {
  const int banks = static_cast<int>(args.banks.size());
  [&]<int... kBanks>(std::integer_sequence<int, kBanks...>) {
    ((banks == kBanks ? launch<kBanks + 1>(args, stream) : void()), ...);
  }(std::make_integer_sequence<int, kMaxBanks + 1>());
}

}  // namespace perigee::cuda
