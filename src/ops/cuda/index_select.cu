// index_select on any GPU since sm_80: one pass that scores, by blocks of 256 keys times some rows of one
// sequence, and one that selects, row by row; between them 16 bits a key and row, for as many rows at once as
// a bounded workspace holds. A score has one order of additions: q·k is one chain over the 128 dimensions; of
// every 32 heads four threads add eight each, ascending, on top of the 32 before; the four are added as
// (0 + 1) + (2 + 3). Selecting is exact integer work, so how many blocks share a row changes nothing.
#include <algorithm>

#include "ops/cuda/backend.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/packed_values.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/require.h"
#include "ops/order_key.h"

namespace perigee::cuda {
namespace {

constexpr int kScoreThreads = 256, kBlockKeys = 256;  // 32 keys a warp, as first operands in registers
constexpr int kBlockPages = kBlockKeys / kPageTokens;
constexpr int kHeadGroup = 32;
constexpr int kKeyStride = kIndexKeyDim + kRowPad;
constexpr int kSteps = kIndexKeyDim / kStepK;
constexpr int64_t kMostWorkspace = 128ll << 20;  // bytes of order keys
constexpr int kMostRowsOfBlock = 64;
constexpr int kSelectThreads = 1024, kThreadKeys = 8;  // 8 keys: one 16-byte load
constexpr int kBins = 256;
constexpr int kSharedRow = 8;  // blocks of a cluster that selects one long row

struct ScoreParameters {
  const bf16* query;    // [R, heads, 128]
  const float* weight;  // [R, heads]
  RowsView rows;
  PagesView pages;
  int heads, top_k;
  int first_row, end_row, rows_of_block;
  uint16_t* order;  // [rows of the launch, stride] order keys
  int64_t stride;   // a multiple of kBlockKeys
};

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

// Where head h of 32 lies in shared memory: column c of the j-th product of 8 columns is head 8·(c/2) + 2j +
// c%2, so that thread t of four gets heads 8t … 8t + 7 in ascending j.
__device__ int column_of_head(int h) { return h % 8 / 2 * 8 + h / 8 * 2 + h % 2; }

// max(x, 0), NaN staying NaN.
__device__ float relu(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

// Four sums of each of four neighbouring threads, added over them as (0 + 1) + (2 + 3); thread t gets the
// t-th.
__device__ float add_over_four(const float (&x)[4]) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  float a = odd ? x[1] : x[0], b = odd ? x[3] : x[2];
  a += __shfl_xor_sync(kAllLanes, odd ? x[0] : x[1], 1);
  b += __shfl_xor_sync(kAllLanes, odd ? x[2] : x[3], 1);
  return (upper ? b : a) + __shfl_xor_sync(kAllLanes, upper ? a : b, 2);
}

template <IndexKeyFormat kFormat>
__global__ void __launch_bounds__(kScoreThreads, 2) index_score_kernel(const ScoreParameters a) {
  extern __shared__ __align__(16) uint8_t memory[];
  bf16* keys = reinterpret_cast<bf16*>(memory);    // [256, kKeyStride]
  bf16* queries = keys + kBlockKeys * kKeyStride;  // [2][32, kKeyStride] heads as columns
  float* weights = reinterpret_cast<float*>(queries + 2 * kHeadGroup * kKeyStride);  // [2][32]
  __shared__ const uint8_t* page[kBlockPages];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int sequence = blockIdx.z, first_key = blockIdx.x * kBlockKeys;

  const SequenceRows seq = a.rows.sequences[sequence];
  const int start = static_cast<int>(seq.start);
  const int from = max(seq.first_row, a.first_row) + static_cast<int>(blockIdx.y) * a.rows_of_block;
  const int end = min(min(from + a.rows_of_block, seq.first_row + seq.rows), a.end_row);
  // Rows that see the block's first key, and more keys than they select.
  const int begin = max(from, seq.first_row + max(a.top_k, first_key) - start);
  if (begin >= end) return;

  const int left = min(kBlockKeys, start + seq.rows - first_key);
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
  fetch(0);
  __syncthreads();
  load_keys<kFormat>(page, left, keys);
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

struct SelectParameters {
  RowsView rows;
  int top_k, first_row;
  const uint16_t* order;  // [rows of the launch, stride]
  int64_t stride;
  int* histogram;     // [rows of the launch, kSharedRow, 2, kBins] when blocks share a row
  int32_t* selected;  // [R, top_k]
  int32_t* count;     // [R]
};

// A thread's 8 keys at `at`, as far as they come before `end`.
struct Eight {
  uint4 raw;
  int exist;
  __device__ Eight(const uint16_t* order, int at, int end)
      : raw{0, 0, 0, 0}, exist(min(end - at, kThreadKeys)) {
    if (exist > 0) raw = *reinterpret_cast<const uint4*>(order + at);
  }
  template <typename Use>
  __device__ void each(const Use& use) const {
    const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < kThreadKeys; ++i)
      if (i < exist) use(i, i % 2 ? word[i / 2] >> 16 : word[i / 2] & 0xFFFFu);
  }
};

// The bin in which the `wanted`-th largest lies, and how many lie in bins above it. By one whole warp.
struct Found {
  int bin, above;
};
__device__ void find_bin(const int* bins, int wanted, Found* found) {
  constexpr int kEach = kBins / 32;
  const int lane = threadIdx.x % 32, highest = kBins - 1 - lane * kEach;
  int own = 0;
  for (int i = 0; i < kEach; ++i) own += bins[highest - i];
  int upto = own;
  for (int stride = 1; stride < 32; stride *= 2) {
    const int other = __shfl_up_sync(kAllLanes, upto, stride);
    if (lane >= stride) upto += other;
  }
  int above = upto - own;
  if (above >= wanted || upto < wanted) return;
  for (int i = 0; i < kEach; ++i) {
    if (above + bins[highest - i] >= wanted) {
      *found = {highest - i, above};
      return;
    }
    above += bins[highest - i];
  }
}

// The row's top_k positions: a histogram of the keys' high bytes, one of the low bytes under the high byte of
// the last key selected, then one walk in ascending position that writes what lies above the threshold and
// the first of those on it. kBlocks blocks of a cluster share the row, each a range of positions.
template <int kBlocks>
__global__ void __launch_bounds__(kSelectThreads) index_select_kernel(const SelectParameters a) {
  __shared__ int bins[2][kBins];      // of this block
  __shared__ int all_bins[2][kBins];  // of the row
  __shared__ Found found[2];
  __shared__ int before[2];  // in the blocks before: above the threshold, on it
  __shared__ int warp_total[2][kSelectThreads / 32];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int rank = blockIdx.x % kBlocks, launch_row = blockIdx.x / kBlocks, row = a.first_row + launch_row;
  const int visible = static_cast<int>(a.rows.position(row)) + 1;
  int32_t* selected = a.selected + int64_t{row} * a.top_k;
  if (rank == 0 && thread == 0) a.count[row] = min(visible, a.top_k);
  if (visible <= a.top_k) {
    for (int i = rank * kSelectThreads + thread; i < a.top_k; i += kBlocks * kSelectThreads)
      selected[i] = i < visible ? i : -1;
    return;
  }

  const uint16_t* order = a.order + launch_row * a.stride;
  const int range = (visible + kBlocks * kThreadKeys - 1) / (kBlocks * kThreadKeys) * kThreadKeys;
  const int begin = rank * range, end = min(begin + range, visible);
  constexpr int kStride = kSelectThreads * kThreadKeys;
  int* histogram = a.histogram + int64_t{launch_row} * kSharedRow * 2 * kBins;  // [rank, level, bin]

  for (int i = thread; i < 2 * kBins; i += kSelectThreads) bins[i / kBins][i % kBins] = 0;
  if (thread < 2) before[thread] = 0;
  __syncthreads();
  for (int level = 0; level < 2; ++level) {
    const uint32_t high = level == 0 ? 0 : found[0].bin;
    for (int at = begin + thread * kThreadKeys; at < end; at += kStride) {
      Eight(order, at, end).each([&](int, uint32_t key) {
        if (level == 0) {
          atomicAdd(&bins[0][key >> 8], 1);
        } else if (key >> 8 == high) {
          atomicAdd(&bins[1][key & 255], 1);
        }
      });
    }
    __syncthreads();
    if constexpr (kBlocks > 1) {
      if (thread < kBins) histogram[(rank * 2 + level) * kBins + thread] = bins[level][thread];
      cluster_barrier();
    }
    if (thread < kBins) {
      int total = bins[level][thread];
      if constexpr (kBlocks > 1) {
        total = 0;
        for (int r = 0; r < kBlocks; ++r) total += __ldcg(&histogram[(r * 2 + level) * kBins + thread]);
      }
      all_bins[level][thread] = total;
    }
    __syncthreads();
    if (warp == 0) find_bin(all_bins[level], a.top_k - (level == 0 ? 0 : found[0].above), &found[level]);
    __syncthreads();
  }
  const uint32_t threshold = static_cast<uint32_t>(found[0].bin << 8 | found[1].bin);
  const int quota = a.top_k - found[0].above - found[1].above;  // of the keys on the threshold
  if constexpr (kBlocks > 1) {
    if (thread < kBins) {
      int above = 0, on = 0;
      for (int r = 0; r < rank; ++r) {
        const int first = __ldcg(&histogram[r * 2 * kBins + thread]);
        const int second = __ldcg(&histogram[(r * 2 + 1) * kBins + thread]);
        if (thread > found[0].bin) above += first;
        if (thread > found[1].bin) above += second;
        if (thread == found[1].bin) on += second;
      }
      if (above > 0) atomicAdd(&before[0], above);
      if (on > 0) atomicAdd(&before[1], on);
    }
    __syncthreads();
  }

  int above = before[0], on = before[1];  // at earlier positions
  int round = 0;
  for (int first = begin; first < end; first += kStride, round ^= 1) {
    const int at = first + thread * kThreadKeys;
    const Eight keys(order, at, end);
    int own = 0;  // above in the low half, on in the high half
    keys.each([&](int, uint32_t key) { own += (key > threshold) + ((key == threshold) << 16); });
    int upto = own;
    for (int stride = 1; stride < 32; stride *= 2) {
      const int other = __shfl_up_sync(kAllLanes, upto, stride);
      if (lane >= stride) upto += other;
    }
    if (lane == 31) warp_total[round][warp] = upto;
    __syncthreads();
    const int of_warp = warp_total[round][lane];
    int upto_warp = of_warp;
    for (int stride = 1; stride < 32; stride *= 2) {
      const int other = __shfl_up_sync(kAllLanes, upto_warp, stride);
      if (lane >= stride) upto_warp += other;
    }
    const int warps_before = __shfl_sync(kAllLanes, upto_warp - of_warp, warp);
    const int all = __shfl_sync(kAllLanes, upto_warp, 31);
    const int earlier = warps_before + upto - own;
    int my_above = above + (earlier & 0xFFFF), my_on = on + (earlier >> 16);
    if (own != 0) {
      keys.each([&](int i, uint32_t key) {
        if (key > threshold) {
          selected[my_above + min(my_on, quota)] = at + i;
          ++my_above;
        } else if (key == threshold) {
          if (my_on < quota) selected[my_above + my_on] = at + i;
          ++my_on;
        }
      });
    }
    above += all & 0xFFFF;
    on += all >> 16;
  }
}

struct Device {
  int major = 0, multiprocessors = 0;
  Device() {
    int device = 0;
    cuda_check(cudaGetDevice(&device), "cudaGetDevice");
    cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
               "cudaDeviceGetAttribute");
    cuda_check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
               "cudaDeviceGetAttribute");
  }
};

template <IndexKeyFormat kFormat>
void launch_scores(const ScoreParameters& p, dim3 grid, cudaStream_t stream) {
  constexpr int kBytes = (kBlockKeys + 2 * kHeadGroup) * kKeyStride * 2 + 2 * kHeadGroup * 4;
  cuda_check(
      cudaFuncSetAttribute(index_score_kernel<kFormat>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
      "cudaFuncSetAttribute of index_score");
  index_score_kernel<kFormat><<<grid, kScoreThreads, kBytes, stream>>>(p);
  cuda_check(cudaGetLastError(), "launching index_score");
}

void launch_scores(ScoreParameters p, std::span<const SequenceRows> sequences, const Device& device,
                   cudaStream_t stream) {
  int most_rows = 0;
  int64_t most_keys = 0, blocks = 0;  // blocks: (keys, row) pairs of the launch
  for (const SequenceRows& s : sequences) {
    const int from = std::max(s.first_row, p.first_row), end = std::min(s.first_row + s.rows, p.end_row);
    if (from >= end) continue;
    const int64_t keys = s.start + (end - s.first_row);
    if (keys <= p.top_k) continue;
    most_rows = std::max(most_rows, end - from);
    most_keys = std::max(most_keys, keys);
    blocks += (keys + kBlockKeys - 1) / kBlockKeys * (end - from);
  }
  if (most_rows == 0) return;
  // As many rows a block as leave every multiprocessor about sixteen blocks.
  p.rows_of_block =
      static_cast<int>(std::clamp<int64_t>(blocks / (16 * device.multiprocessors), 1, kMostRowsOfBlock));
  const dim3 grid(static_cast<unsigned>((most_keys + kBlockKeys - 1) / kBlockKeys),
                  static_cast<unsigned>((most_rows + p.rows_of_block - 1) / p.rows_of_block),
                  static_cast<unsigned>(sequences.size()));
  switch (p.pages.index_format) {
    case IndexKeyFormat::kBf16:
      return launch_scores<IndexKeyFormat::kBf16>(p, grid, stream);
    case IndexKeyFormat::kFp8:
      return launch_scores<IndexKeyFormat::kFp8>(p, grid, stream);
    case IndexKeyFormat::kMxfp4:
      return launch_scores<IndexKeyFormat::kMxfp4>(p, grid, stream);
  }
}

void launch_select(const SelectParameters& p, int rows, bool shared, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = kSharedRow;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(rows * (shared ? kSharedRow : 1)));
  config.blockDim = dim3(kSelectThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = shared ? 1 : 0;
  cuda_check(shared ? cudaLaunchKernelEx(&config, index_select_kernel<kSharedRow>, p)
                    : cudaLaunchKernelEx(&config, index_select_kernel<1>, p),
             "launching index_select");
}

}  // namespace

void CudaBackend::index_select(const IndexSelectArgs& a) {
  constexpr int kFewRows = 16, kLongRow = 16384;  // where a row is worth a cluster
  require(a.config.head_dim == kIndexKeyDim, "index_select: head_dim", a.config.head_dim, "128");
  const RowsView rows = tables_.rows();
  if (rows.rows == 0) return;
  Arena::Scope scope(scratch_);
  const Device device;
  int64_t most_keys = 0;
  for (const SequenceRows& s : tables_.bounds()) most_keys = std::max(most_keys, s.start + s.rows);
  const int64_t stride = (most_keys + kBlockKeys - 1) / kBlockKeys * kBlockKeys;
  const bool scored = most_keys > a.config.top_k;
  const int at_once =
      static_cast<int>(scored ? std::clamp<int64_t>(kMostWorkspace / (stride * 2), 1, rows.rows) : rows.rows);
  const bool shared = device.major >= 9 && at_once <= kFewRows && most_keys >= kLongRow && scored;
  uint16_t* order = scored ? scratch_.take<uint16_t>(at_once * stride) : nullptr;
  int* histogram = shared ? scratch_.take<int>(int64_t{at_once} * kSharedRow * 2 * kBins) : nullptr;
  for (int first = 0; first < rows.rows; first += at_once) {
    const int end = std::min(first + at_once, rows.rows);
    if (scored) {
      launch_scores({.query = a.index_query,
                     .weight = a.index_weight,
                     .rows = rows,
                     .pages = tables_.pages(a.pages),
                     .heads = a.config.num_heads,
                     .top_k = a.config.top_k,
                     .first_row = first,
                     .end_row = end,
                     .rows_of_block = 1,
                     .order = order,
                     .stride = stride},
                    tables_.bounds(), device, stream());
    }
    launch_select({.rows = rows,
                   .top_k = a.config.top_k,
                   .first_row = first,
                   .order = order,
                   .stride = stride,
                   .histogram = histogram,
                   .selected = a.selected,
                   .count = a.count},
                  end - first, shared, stream());
  }
}

}  // namespace perigee::cuda
