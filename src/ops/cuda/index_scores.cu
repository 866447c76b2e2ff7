// The scores of index_select on any GPU since sm_80, on Hopper of what index_scores_sm90.cu does not take:
// blocks of 256 keys times some rows of one sequence. A score has one order of additions: q·k is one chain
// over the 128 dimensions; of every 32 heads four threads add eight each, ascending, on top of the 32 before;
// the four are added as (0 + 1) + (2 + 3).
#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/index_score.cuh"
#include "ops/cuda/index_select.h"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/packed_values.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/order_key.h"

namespace perigee::cuda {
namespace {

constexpr int kScoreThreads = 256,
              kBlockKeys = kScoreBlockKeys;  // 32 keys a warp, as first operands in registers
constexpr int kBlockPages = kBlockKeys / kPageTokens;
constexpr int kKeyStride = kIndexKeyDim + kRowPad;
constexpr int kSteps = kIndexKeyDim / kStepK;
constexpr int kMostRowsOfBlock = 64;

// 256 index keys as bf16 rows of shared memory; zeros from `left` on.
template <IndexKeyFormat kFormat>
__device__ void load_keys(const uint8_t* const* page, int left, bf16* keys) {
  constexpr int kPieces = index_key_value_bytes(kFormat) / 16, kValues = kIndexKeyDim / kPieces;
#pragma unroll
  for (int i = 0; i < kBlockKeys * kPieces / kScoreThreads; ++i) {
    const int at = i * kScoreThreads + threadIdx.x, key = at / kPieces, piece = at % kPieces;
    bf16* to = keys + key * kKeyStride + piece * kValues;
    const uint8_t* from = page[key / kPageTokens];
    uint4 raw{0, 0, 0, 0};
    float scale = 0.0f;
    if (key < left) {
      raw =
          *reinterpret_cast<const uint4*>(from + index_value_offset(kFormat, key % kPageTokens) + piece * 16);
      if constexpr (kFormat == IndexKeyFormat::kMxfp4)
        scale = e8m0_to_float(from[index_scale_offset(kFormat, key % kPageTokens) + piece]);
    }
    if constexpr (kFormat == IndexKeyFormat::kBf16) *reinterpret_cast<uint4*>(to) = raw;
    if constexpr (kFormat == IndexKeyFormat::kFp8) decode_e4m3(raw, 1.0f, to);
    if constexpr (kFormat == IndexKeyFormat::kMxfp4) decode_e2m1(raw, scale, scale, to);
  }
}

// max(x, 0), NaN staying NaN.
__device__ float relu(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

template <IndexKeyFormat kFormat>
__global__ void __launch_bounds__(kScoreThreads, 2)
    index_score_kernel(const ScoreParameters a, int rows_of_block) {
  extern __shared__ __align__(16) uint8_t memory[];
  bf16* keys = reinterpret_cast<bf16*>(memory);    // [256, kKeyStride]
  bf16* queries = keys + kBlockKeys * kKeyStride;  // [2][32, kKeyStride] heads as columns
  float* weights = reinterpret_cast<float*>(queries + 2 * kHeadGroup * kKeyStride);  // [2][32]
  __shared__ const uint8_t* page[kBlockPages];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const auto [sequence, first_key, start, left, begin, end] = ScoreShare(a, rows_of_block);
  if (begin >= end) {
    wait_for_previous();
    return;
  }

  if (thread < kBlockPages && thread * kPageTokens < left)
    page[thread] = a.pages.index_key(sequence, first_key / kPageTokens + thread);

  const int groups = (a.heads + kHeadGroup - 1) / kHeadGroup, items = (end - begin) * groups;
  const auto fetch = [&](int item) {  // 32 heads of one row
    const int64_t row = begin + item / groups;
    const int first_head = item % groups * kHeadGroup;
    bf16* to = queries + item % 2 * kHeadGroup * kKeyStride;
    constexpr int kPieces = kIndexKeyDim / 8;
    for (int at = thread; at < kHeadGroup * kPieces; at += kScoreThreads) {
      const int h = at / kPieces, piece = at % kPieces;
      const bool exists = first_head + h < a.heads;
      const bf16* q = a.query + (row * a.heads + (exists ? first_head + h : 0)) * kIndexKeyDim;
      copy_16(to + column_of_head(h) * kKeyStride + piece * 8, q + piece * 8, exists);
    }
    if (thread < kHeadGroup) {
      const bool exists = first_head + thread < a.heads;
      copy_4(weights + item % 2 * kHeadGroup + thread,
             a.weight + row * a.heads + (exists ? first_head + thread : 0), exists);
    }
    commit_copies();
  };
  __syncthreads();
  const bool all_old = first_key + kBlockKeys <= start;  // no key is of this step
  if (!all_old) begin_in_turn();
  load_keys<kFormat>(page, left, keys);
  if (all_old) begin_in_turn();
  fetch(0);
  const int my_key = warp * 32 + lane % 4 * 8 + lane / 4;  // whose score this thread ends up with
  float key_scale = 1.0f;
  if (kFormat == IndexKeyFormat::kFp8 && my_key < left) {
    key_scale = *reinterpret_cast<const float*>(page[my_key / kPageTokens] +
                                                index_scale_offset(kFormat, my_key % kPageTokens));
  }
  __syncthreads();
  FragmentA key[2][kSteps];
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
      key[m][k] = load_first(keys + (warp * 32 + m * 16) * kKeyStride + k * kStepK, kKeyStride);
  }

  float sum[4] = {};  // of keys g, g + 8, g + 16, g + 24 over this thread's heads
  for (int item = 0; item < items; ++item) {
    wait_copies<0>();
    __syncthreads();  // the item is there, and every warp is done with the one before
    if (item + 1 < items) fetch(item + 1);
    const bf16* query = queries + item % 2 * kHeadGroup * kKeyStride;
    const float* weight = weights + item % 2 * kHeadGroup + lane % 4 * 8;
    const int heads_left = a.heads - item % groups * kHeadGroup - lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      float c[2][2][4] = {};  // [column group][16 keys]
#pragma unroll
      for (int k = 0; k < kSteps; k += 2) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          FragmentB q[2];
          load_second(q, query + (j + n) * 8 * kKeyStride + k * kStepK, kKeyStride);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            multiply_add(c[n][m], key[m][k], q[0]);
            multiply_add(c[n][m], key[m][k + 1], q[1]);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int h = 2 * (j + n);
        const float2 w = *reinterpret_cast<const float2*>(weight + h);
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // heads that do not exist add nothing, not even 0 · ∞
          const float* pair = c[n][i / 2] + i % 2 * 2;
          if (h < heads_left) sum[i] = __fmaf_rn(w.x, relu(pair[0]), sum[i]);
          if (h + 1 < heads_left) sum[i] = __fmaf_rn(w.y, relu(pair[1]), sum[i]);
        }
      }
    }
    if (item % groups == groups - 1) {
      const int64_t row = begin + item / groups - a.first_row;
      const bf16 score = float_to_bf16(key_scale * add_over_four(sum));
      a.order[row * a.stride + first_key + my_key] = static_cast<uint16_t>(order_key(score));
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] = 0.0f;
    }
  }
}

template <IndexKeyFormat kFormat>
void launch(const ScoreParameters& p, dim3 grid, int rows_of_block, cudaStream_t stream) {
  constexpr int kBytes = (kBlockKeys + 2 * kHeadGroup) * kKeyStride * 2 + 2 * kHeadGroup * 4;
  static const cudaError_t raised =
      cudaFuncSetAttribute(index_score_kernel<kFormat>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  cuda_check(raised, "cudaFuncSetAttribute of index_score");
  launch_overlapping(index_score_kernel<kFormat>,
                     {.grid = grid, .threads = kScoreThreads, .shared_bytes = kBytes}, stream, p,
                     rows_of_block);
}

}  // namespace

ScoredRows::ScoredRows(const ScoreParameters& p, std::span<const SequenceRows> sequences) {
  for (const SequenceRows& s : sequences) {
    const int from = std::max(s.first_row, p.first_row), end = std::min(s.first_row + s.rows, p.end_row);
    if (from >= end) continue;
    const int64_t keys = s.start + (end - s.first_row), blocks = (keys + kBlockKeys - 1) / kBlockKeys;
    if (keys <= p.top_k) continue;
    most_rows = std::max(most_rows, end - from);
    key_blocks = std::max(key_blocks, blocks);
    pairs += blocks * (end - from);
  }
}

void launch_index_scores(const ScoreParameters& p, std::span<const SequenceRows> sequences,
                         cudaStream_t stream) {
#if PERIGEE_SM90
  if (p.packed.code) return launch_index_scores_fp8(p, sequences, stream);
#endif
  const ScoredRows scored(p, sequences);
  if (scored.most_rows == 0) return;
  // As many rows a block as leave every multiprocessor about sixteen blocks.
  static const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  const int rows_of_block =
      static_cast<int>(std::clamp<int64_t>(scored.pairs / (16 * multiprocessors), 1, kMostRowsOfBlock));
  const dim3 grid(static_cast<unsigned>(scored.key_blocks),
                  static_cast<unsigned>((scored.most_rows + rows_of_block - 1) / rows_of_block),
                  static_cast<unsigned>(sequences.size()));
  switch (p.pages.index_format) {
    case IndexKeyFormat::kBf16:
      return launch<IndexKeyFormat::kBf16>(p, grid, rows_of_block, stream);
    case IndexKeyFormat::kFp8:
      return launch<IndexKeyFormat::kFp8>(p, grid, rows_of_block, stream);
    case IndexKeyFormat::kMxfp4:
      return launch<IndexKeyFormat::kMxfp4>(p, grid, rows_of_block, stream);
  }
}

}  // namespace perigee::cuda
