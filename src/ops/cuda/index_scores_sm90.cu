// The scores of index_select from fp8 keys and 32 heads on Hopper: a block has 256 keys, a page of 64 a
// warpgroup as the first operand of products of e4m3 whose columns are the heads of some rows, and goes
// through rows of one sequence. A warp copies heads into a ring of stages; some warpgroups make scores while
// others multiply.
//
// A score has one order of additions: q·k is one chain over the 128 dimensions; of every 32 heads four
// threads add eight each in fp32, ascending, on top of the 32 before; the four are added as (0 + 1) + (2 +
// 3).
#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/index_score.cuh"
#include "ops/cuda/index_select.h"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/order_key.h"
#if PERIGEE_SM90
#include "ops/cuda/bulk_copies.cuh"
#include "ops/cuda/wgmma.cuh"
#endif

namespace perigee::cuda {
#if PERIGEE_SM90
namespace {

constexpr int kPagesOfBlock = kScoreBlockKeys / kPageTokens;
constexpr int kMultipliers = kPagesOfBlock * kWarpgroup, kThreads = kMultipliers + 32;
constexpr int kCodeBytes = kHeadGroup * kIndexKeyDim;  // of 32 heads
constexpr int kKeyPieces = kIndexKeyDim / 16;          // of 16 bytes
constexpr int kStepE4m3 = 32;                          // values of K of one product
constexpr int kMostRows = 4;                           // of a stage
static_assert(kPageTokens == kGroupRows);

// relu(q·k) / kSmall in one instruction of the multipliers, where max would take two slots of a slower pipe:
// q·k is at most 128 · 448². NaN gives 0, so keys and heads with a NaN say so in scales and weights.
constexpr float kSmall = 0x1p25f;
__device__ float small_relu(float x) { return __saturatef(x * (1.0f / kSmall)); }

__device__ float nan() { return __uint_as_float(0x7FFFFFFFu); }
// Whether any of four codes is NaN.
__device__ bool any_nan(uint32_t codes) { return ((codes & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u; }

// A stage has the heads of kRows rows.
template <int kRows>
struct Memory {
  struct alignas(1024) Stage {
    uint8_t code[kRows * kCodeBytes];
    float weight[kRows * kHeadGroup];
  };
  static constexpr int kStages = 4;
  static constexpr int kStageBytes = kRows * (kCodeBytes + kHeadGroup * int{sizeof(float)});

  uint8_t key[kPagesOfBlock][kPageTokens * kIndexKeyDim];
  Stage stages[kStages];
  CopyBarrier full[kStages], free[kStages];
};

// The page of a warpgroup.
template <int kRows>
class Scorer {
 public:
  __device__ Scorer(const ScoreParameters& a, Memory<kRows>& memory, int group, float key_scale,
                    uint16_t* order)
      : a_(a), m_(memory), key_(memory.key[group]), key_scale_(key_scale), order_(order) {}

  // Rows [begin, end).
  __device__ void run(int begin, int end) {
    int step = 0;
    for (int first = begin; first < end; first += kRows, ++step) {
      const int s = step % Memory<kRows>::kStages;
      wait_barrier(&m_.full[s], step / Memory<kRows>::kStages % 2);
      multiply(m_.stages[s].code);
      add_heads(m_.stages[s].weight, first, end);
      arrive_warp(&m_.free[s]);
    }
  }

 private:
  __device__ void multiply(const uint8_t* code) {
    const uint64_t a = operand(key_), b = operand(code);
    start_products();
#pragma unroll
    for (int k = 0; k < kIndexKeyDim / kStepE4m3; ++k)
      multiply_e4m3_async(c_, a + k * kNextStep, b + k * kNextStep, k > 0);
    commit_products();
    wait_products<0>();
    pin(c_);
  }

  // Scores of a stage's rows. The thread has eight heads of two keys, 8 apart, of every row.
  __device__ void add_heads(const float* weight, int first, int end) {
    float sum[kRows / kTogether][4] = {};
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      add_row(weight, i, sum[i / kTogether][i % kTogether * 2], sum[i / kTogether][i % kTogether * 2 + 1]);
    uint16_t* to = row_of_order(first);
#pragma unroll
    for (int i = 0; i < kRows; i += kTogether, to += kTogether * a_.stride)
      write(sum[i / kTogether], first + i, end, to);
  }

  // Two keys' terms of row i of the stage.
  __device__ void add_row(const float* weight, int i, float& first_key, float& second_key) const {
    const int t = static_cast<int>(threadIdx.x) % 4;
    const float4* w = reinterpret_cast<const float4*>(weight + i * kHeadGroup + 8 * t);
    const float4 low = w[0], high = w[1];
    const float of_head[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int h = 0; h < 8; ++h) {
      const float* c = &c_[16 * i + h / 2 * 4 + h % 2];
      first_key = __fmaf_rn(of_head[h], small_relu(c[0]), first_key);
      second_key = __fmaf_rn(of_head[h], small_relu(c[2]), second_key);
    }
  }

  // Threads 0 and 1 of four write two keys of `row`, 2 and 3 those of the row behind it.
  __device__ uint16_t* row_of_order(int row) const {
    const int t = static_cast<int>(threadIdx.x) % 4;
    return order_ + (row + t / 2 - a_.first_row) * a_.stride;
  }
  __device__ void write(const float (&sum)[4], int row, int end, uint16_t* to) const {
    const int t = static_cast<int>(threadIdx.x) % 4;
    const float score = key_scale_ * (add_over_four(sum) * kSmall);
    if (t / 2 < kTogether && row + t / 2 < end)
      *to = static_cast<uint16_t>(order_key(static_cast<bf16>(bf16_pair(score, 0.0f))));
  }

  static constexpr int kTogether = kRows == 1 ? 1 : 2;  // rows that four threads write together

  const ScoreParameters& a_;
  Memory<kRows>& m_;
  const uint8_t* key_;
  float key_scale_;
  uint16_t* order_;  // the thread's key, in the launch's first row
  float c_[16 * kRows] = {};
};

template <int kRows>
__global__ void __launch_bounds__(kThreads, 1)
    index_score_fp8_kernel(const __grid_constant__ ScoreParameters a, int rows_of_block) {
  constexpr IndexKeyFormat kFormat = IndexKeyFormat::kFp8;
  extern __shared__ __align__(1024) uint8_t bytes[];
  Memory<kRows>& m = *reinterpret_cast<Memory<kRows>*>(bytes);
  const int thread = threadIdx.x;
  const auto [sequence, first_key, start, left, begin, end] = ScoreShare(a, rows_of_block);
  if (begin >= end) {
    wait_for_previous();
    return;
  }
  if (thread == 0) {
    for (int s = 0; s < Memory<kRows>::kStages; ++s) {
      init_barrier(&m.full[s], 1);
      init_barrier(&m.free[s], kMultipliers / 32);
    }
    publish_barriers();
  }

  const auto page = [&](int key) { return a.pages.index_key(sequence, (first_key + key) / kPageTokens); };
  const auto load_keys = [&] {
    for (int at = thread; at < kScoreBlockKeys * kKeyPieces; at += kThreads) {
      const int key = at / kKeyPieces, piece = at % kKeyPieces, in_page = key % kPageTokens;
      const bool exists = key < left;
      copy_16(m.key[key / kPageTokens] + in_page * kIndexKeyDim + ((piece ^ in_page) & 7) * 16,
              exists ? page(key) + index_value_offset(kFormat, in_page) + piece * 16
                     : reinterpret_cast<const uint8_t*>(a.weight),
              exists);
    }
    commit_copies();
  };
  const bool all_old = first_key + kScoreBlockKeys <= start;  // no key is of this step
  if (all_old) load_keys();
  begin_in_turn();
  if (!all_old) load_keys();
  wait_copies<0>();
  publish_to_products();
  __syncthreads();

  const int group = __shfl_sync(kAllLanes, thread / kWarpgroup, 0);
  if (group == kMultipliers / kWarpgroup) {
    if (thread != kMultipliers) return;
    int step = 0;
    for (int first = begin; first < end; first += kRows, ++step) {
      const int s = step % Memory<kRows>::kStages, round = step / Memory<kRows>::kStages;
      if (round > 0) wait_barrier(&m.free[s], (round - 1) % 2);
      arrive_expecting(&m.full[s], Memory<kRows>::kStageBytes);
      copy_bytes(m.stages[s].code, a.packed.code + int64_t{first} * kCodeBytes, kRows * kCodeBytes,
                 &m.full[s], 1);
      copy_bytes(m.stages[s].weight, a.packed.weight + int64_t{first} * kHeadGroup,
                 kRows * kHeadGroup * int{sizeof(float)}, &m.full[s], 1);
    }
  } else {
    const int lane = thread % 32;
    const int in_page = thread % kWarpgroup / 32 * 16 + lane / 4 + lane % 2 * 8;  // the thread's key
    const int key = group * kPageTokens + in_page;
    float key_scale = 0.0f;
    if (key < left) {
      key_scale = *reinterpret_cast<const float*>(page(key) + index_scale_offset(kFormat, in_page));
      const uint4* code = reinterpret_cast<const uint4*>(m.key[group] + in_page * kIndexKeyDim);
      for (int i = 0; i < kKeyPieces; ++i) {
        if (any_nan(code[i].x) || any_nan(code[i].y) || any_nan(code[i].z) || any_nan(code[i].w))
          key_scale = nan();
      }
    }
    Scorer<kRows>(a, m, group, key_scale, a.order + first_key + key).run(begin, end);
  }
}

template <int kRows>
void launch(const ScoreParameters& p, dim3 grid, int rows_of_block, cudaStream_t stream) {
  constexpr int kBytes = sizeof(Memory<kRows>);
  static const cudaError_t raised = cudaFuncSetAttribute(index_score_fp8_kernel<kRows>,
                                                         cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  cuda_check(raised, "cudaFuncSetAttribute of index_score_fp8");
  launch_overlapping(index_score_fp8_kernel<kRows>,
                     {.grid = grid, .threads = kThreads, .shared_bytes = kBytes}, stream, p, rows_of_block);
}

// Of two bf16, the first in the low half; values of e4m3 as they are.
__device__ uint32_t e4m3_codes(uint32_t pair) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
      : "=h"(codes)
      : "f"(__uint_as_float(pair & 0xFFFF0000u)), "f"(__uint_as_float(pair << 16)));
  return codes;
}

// Sixteen values a thread.
struct PackParameters {
  const bf16* query;
  const float* weight;
  uint8_t* code;
  float* packed_weight;
  int64_t pieces;
};
__global__ void pack_index_query_kernel(const PackParameters a) {
  begin_in_turn();
  const int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (at >= a.pieces) return;
  const int piece = static_cast<int>(at % kKeyPieces);
  const int64_t head = at / kKeyPieces;  // of all rows
  const int column = column_of_head(static_cast<int>(head % kHeadGroup));
  const uint4* from = reinterpret_cast<const uint4*>(a.query + head * kIndexKeyDim + piece * 16);
  const uint4 first = from[0], second = from[1];
  const uint32_t pair[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
  uint32_t word[4] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) word[i / 2] |= e4m3_codes(pair[i]) << i % 2 * 16;
  *reinterpret_cast<uint4*>(a.code + (head / kHeadGroup * kHeadGroup + column) * kIndexKeyDim +
                            ((piece ^ column) & 7) * 16) = {word[0], word[1], word[2], word[3]};
  const bool nan_here = any_nan(word[0]) || any_nan(word[1]) || any_nan(word[2]) || any_nan(word[3]);
  const uint32_t nans =
      __ballot_sync(kAllLanes, nan_here) >> (threadIdx.x % 32 - piece);  // whole warps are here
  if (piece == 0) a.packed_weight[head] = nans & 0xFFu ? nan() : a.weight[head];
}

}  // namespace

PackedQuery pack_index_query(const bf16* query, const float* weight, int rows, Arena& scratch,
                             cudaStream_t stream) {
  constexpr int kPackThreads = 256;
  const int64_t room = int64_t{rows} + kMostRows - 1;
  const PackParameters p{.query = query,
                         .weight = weight,
                         .code = scratch.take<uint8_t>(room * kCodeBytes),
                         .packed_weight = scratch.take<float>(room * kHeadGroup),
                         .pieces = int64_t{rows} * kHeadGroup * kKeyPieces};
  const dim3 grid(static_cast<unsigned>((p.pieces + kPackThreads - 1) / kPackThreads));
  launch_overlapping(pack_index_query_kernel, {.grid = grid, .threads = kPackThreads}, stream, p);
  return {.code = p.code, .weight = p.packed_weight};
}

void launch_index_scores_fp8(const ScoreParameters& p, std::span<const SequenceRows> sequences,
                             cudaStream_t stream) {
  const ScoredRows scored(p, sequences);
  if (scored.most_rows == 0) return;
  // Blocks enough for several on every multiprocessor, with whole stages.
  static const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  constexpr int kBlocksOfMultiprocessor = 8;
  const int64_t parts =
      std::clamp<int64_t>(kBlocksOfMultiprocessor * multiprocessors / scored.key_blocks, 1, scored.most_rows);
  const int rows_of_block =
      static_cast<int>((scored.most_rows + parts * kMostRows - 1) / (parts * kMostRows)) * kMostRows;
  const dim3 grid(static_cast<unsigned>(scored.key_blocks),
                  static_cast<unsigned>((scored.most_rows + rows_of_block - 1) / rows_of_block),
                  static_cast<unsigned>(sequences.size()));
  if (scored.most_rows == 1) {
    launch<1>(p, grid, rows_of_block, stream);
  } else {
    launch<kMostRows>(p, grid, rows_of_block, stream);
  }
}
#endif

}  // namespace perigee::cuda
