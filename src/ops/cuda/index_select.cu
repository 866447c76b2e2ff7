// index_select on any GPU since sm_80: scores (index_scores.cu), then the exact selection, row by row, for as
// many rows at once as a bounded workspace holds. Selecting is integer work, so which kernel does it, and how
// many blocks share a row, changes nothing.
#include "ops/cuda/index_select.h"

#include <algorithm>

#include "ops/cuda/backend.h"
#include "ops/cuda/bulk_copies.cuh"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/require.h"
#include "ops/cuda/wgmma.cuh"

namespace perigee::cuda {
namespace {

constexpr int64_t kMostWorkspace = 128ll << 20;        // bytes of order keys
constexpr int kSelectThreads = 1024, kThreadKeys = 8;  // 8 keys: one 16-byte load
constexpr int kBins = 256;

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
  // Which of them are at least `least`: bit i for key i.
  __device__ uint32_t at_least(uint32_t least) const {
    const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w}, bound = least << 16;
    uint32_t hits = 0;
#pragma unroll
    for (int i = 0; i < kThreadKeys; ++i)
      if ((i % 2 ? word[i / 2] : word[i / 2] << 16) >= bound) hits |= 1u << i;
    return exist > 0 ? hits & ((1u << exist) - 1) : 0;
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
// the first of those on it. kBlocks blocks of a cluster share the row, each a range of positions; they copy
// their histograms to each other.
template <int kBlocks>
__global__ void __launch_bounds__(kSelectThreads) index_select_kernel(const SelectParameters a) {
  __shared__ alignas(16) int bins[2][kBlocks][kBins];  // [level] of each block
  __shared__ int all_bins[2][kBins];                   // of the row
  __shared__ CopyBarrier told[2];                      // the others' bins are here
  __shared__ Found found[2];
  __shared__ int before[2];  // in the blocks before: above the threshold, on it
  __shared__ int warp_total[2][kSelectThreads / 32];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  begin_in_turn();
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
  const auto read = [&](int round) {
    return Eight(order, begin + round * kStride + thread * kThreadKeys, end);
  };
  const Eight first_keys = read(0),
              second_keys = read(1);  // all that a block has of 131,072 in a cluster of 8
  const auto keys_of = [&](int round) {
    return round == 0 ? first_keys : round == 1 ? second_keys : read(round);
  };

  for (int i = thread; i < 2 * kBins; i += kSelectThreads) bins[i / kBins][rank][i % kBins] = 0;
  if (thread < 2) before[thread] = 0;
  if constexpr (kBlocks > 1) {
    if (thread == 0) {
      for (CopyBarrier& barrier : told) init_barrier(&barrier, 1);
      publish_barriers();
      for (CopyBarrier& barrier : told) arrive_expecting(&barrier, (kBlocks - 1) * int{sizeof(bins[0][0])});
    }
  }
  __syncthreads();
  if constexpr (kBlocks > 1) arrive_at_cluster();
  uint32_t high = 0;     // the bin of the level before
  int wanted = a.top_k;  // of the keys that no bin above has settled
  for (int level = 0; level < 2; ++level) {
    for (int round = 0; begin + round * kStride < end; ++round) {
      keys_of(round).each([&](int, uint32_t key) {
        if (level == 0) {
          atomicAdd(&bins[0][rank][key >> 8], 1);
        } else if (key >> 8 == high) {
          atomicAdd(&bins[1][rank][key & 255], 1);
        }
      });
    }
    if constexpr (kBlocks > 1) publish_to_products();
    __syncthreads();
    if constexpr (kBlocks > 1) {
      if (level == 0) wait_for_cluster();  // the others' barriers are there
      if (lane == 0 && warp < kBlocks && warp != rank)
        copy_in(warp, bins[level][rank], int{sizeof(bins[0][0])}, &told[level]);
      __syncwarp();
      wait_barrier(&told[level], 0);
    }
    if (thread < kBins) {
      int total = 0;
#pragma unroll
      for (int r = 0; r < kBlocks; ++r) total += bins[level][r][thread];
      all_bins[level][thread] = total;
    }
    __syncthreads();
    if (warp == 0) find_bin(all_bins[level], wanted, &found[level]);
    __syncthreads();
    high = static_cast<uint32_t>(found[level].bin);
    wanted -= found[level].above;
  }
  const uint32_t threshold = static_cast<uint32_t>(found[0].bin << 8 | found[1].bin);
  const int quota = wanted;  // of the keys on the threshold
  if constexpr (kBlocks > 1) {
    arrive_at_cluster();  // all that comes to this block is here
    if (thread < kBins) {
      int above = 0, on = 0;
      for (int r = 0; r < rank; ++r) {
        const int first = bins[0][r][thread], second = bins[1][r][thread];
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
  for (int round = 0; begin + round * kStride < end; ++round) {
    const int at = begin + round * kStride + thread * kThreadKeys;
    const Eight keys = keys_of(round);
    int own = 0;  // above in the low half, on in the high half
    keys.each([&](int, uint32_t key) { own += (key > threshold) + ((key == threshold) << 16); });
    int upto = own;
    for (int stride = 1; stride < 32; stride *= 2) {
      const int other = __shfl_up_sync(kAllLanes, upto, stride);
      if (lane >= stride) upto += other;
    }
    if (lane == 31) warp_total[round % 2][warp] = upto;
    __syncthreads();
    const int of_warp = warp_total[round % 2][lane];
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
  if constexpr (kBlocks > 1) wait_for_cluster();  // what this block told is read: its memory may go
}

constexpr int kStreamThreads = 256, kStreamWarps = kStreamThreads / 32;
constexpr int kSliceKeys = 32 * kThreadKeys, kSlices = 2;  // of a warp, one after the other in the row
constexpr int kChunkKeys = kStreamWarps * kSlices * kSliceKeys;
constexpr int kMostCandidates = 2 * kChunkKeys;
constexpr int kMostStreamed = kMostCandidates - kChunkKeys;  // top_k: a chunk always has room beside the best

// Keys that may be among the row's top_k, in ascending position.
struct Candidates {
  int32_t position[kMostCandidates];
  uint16_t order[kMostCandidates];
};
struct StreamMemory {
  Candidates candidates;
  int bins[kBins];
  alignas(16) int of_warp[2][kStreamWarps];
  Found found[2];
};

// Sums over the warps of a block.
class WarpSums {
 public:
  __device__ explicit WarpSums(StreamMemory& memory) : m_(memory) {}
  struct Place {
    int before, all;  // of the warps before this one; of all
  };
  // `own` is the same in all lanes. A barrier of the block; the next call may come before others have read
  // this one's.
  __device__ Place add(int own) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    int* of_warp = m_.of_warp[turn_];
    turn_ ^= 1;
    if (threadIdx.x % 32 == 0) of_warp[warp] = own;
    __syncthreads();
    Place place{0, 0};
#pragma unroll
    for (int w = 0; w < kStreamWarps; ++w) {
      if (w == warp) place.before = place.all;
      place.all += of_warp[w];
    }
    return place;
  }

 private:
  StreamMemory& m_;
  int turn_ = 0;
};

// Leaves the best top_k of `count` candidates, in their order, and returns the last one's key. `count` is at
// least top_k.
__device__ uint32_t keep_best(StreamMemory& m, WarpSums& sums, int count, int top_k) {
  const int thread = threadIdx.x, lane = thread % 32;
  Candidates& c = m.candidates;
  uint32_t high = 0;   // the bin of the level before
  int wanted = top_k;  // of the candidates that no bin above has settled
  for (int level = 0; level < 2; ++level) {
    for (int i = thread; i < kBins; i += kStreamThreads) m.bins[i] = 0;
    __syncthreads();
    for (int i = thread; i < count; i += kStreamThreads) {
      const uint32_t key = c.order[i];
      if (level == 0) {
        atomicAdd(&m.bins[key >> 8], 1);
      } else if (key >> 8 == high) {
        atomicAdd(&m.bins[key & 255], 1);
      }
    }
    __syncthreads();
    if (thread < 32) find_bin(m.bins, wanted, &m.found[level]);
    __syncthreads();
    high = static_cast<uint32_t>(m.found[level].bin);
    wanted -= m.found[level].above;
  }
  const uint32_t threshold = static_cast<uint32_t>(m.found[0].bin << 8 | m.found[1].bin);
  const int quota = wanted;  // of the candidates on the threshold

  const uint32_t lanes_before = (1u << lane) - 1;
  int above = 0, on = 0;  // among earlier candidates
  for (int first = 0; first < count; first += kStreamThreads) {
    const int i = first + thread;
    const bool exists = i < count;
    const uint32_t key = exists ? c.order[i] : 0;
    const int32_t position = exists ? c.position[i] : 0;
    const uint32_t is_above = __ballot_sync(kAllLanes, exists && key > threshold);
    const uint32_t is_on = __ballot_sync(kAllLanes, exists && key == threshold);
    // Its barrier lets writes begin: none goes behind the place that it was read from, and all of these are
    // read.
    const WarpSums::Place place = sums.add(__popc(is_above) + (__popc(is_on) << 16));
    const int my_above = above + (place.before & 0xFFFF) + __popc(is_above & lanes_before);
    const int my_on = on + (place.before >> 16) + __popc(is_on & lanes_before);
    if (exists && (key > threshold || (key == threshold && my_on < quota))) {
      const int to = my_above + min(my_on, quota);
      c.position[to] = position;
      c.order[to] = static_cast<uint16_t>(key);
    }
    above += place.all & 0xFFFF;
    on += place.all >> 16;
  }
  return threshold;
}

// The row's top_k positions, top_k ≤ kMostStreamed, from one walk over its keys: a key comes to the
// candidates unless top_k earlier ones are at least as good. So it is enough to ask whether it lies above the
// last of the best so far, which keep_best finds whenever the candidates have no room for a chunk. One block
// a row.
__global__ void __launch_bounds__(kStreamThreads, 4) index_select_stream_kernel(const SelectParameters a) {
  extern __shared__ __align__(16) uint8_t memory[];
  StreamMemory& m = *reinterpret_cast<StreamMemory*>(memory);
  begin_in_turn();
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int row = a.first_row + static_cast<int>(blockIdx.x);
  const int visible = static_cast<int>(a.rows.position(row)) + 1;
  int32_t* selected = a.selected + int64_t{row} * a.top_k;
  if (thread == 0) a.count[row] = min(visible, a.top_k);
  if (visible <= a.top_k) {
    for (int i = thread; i < a.top_k; i += kStreamThreads) selected[i] = i < visible ? i : -1;
    return;
  }

  const uint16_t* order = a.order + blockIdx.x * a.stride;
  const int mine = warp * kSlices * kSliceKeys + lane * kThreadKeys;  // in a chunk
  static_assert(kSlices == 2);
  Eight next[kSlices] = {{order, mine, visible}, {order, mine + kSliceKeys, visible}};
  WarpSums sums(m);
  uint32_t least = 0;  // the least key that may still be selected
  int count = 0;       // of candidates
  for (int first = 0; first < visible; first += kChunkKeys) {
    const int at = first + mine;
    const Eight keys[kSlices] = {next[0], next[1]};
#pragma unroll
    for (int s = 0; s < kSlices; ++s) next[s] = Eight(order, at + kChunkKeys + s * kSliceKeys, visible);
    if (count + kChunkKeys > kMostCandidates) {
      least = keep_best(m, sums, count, a.top_k) + 1;
      count = a.top_k;
    }

    uint32_t hits[kSlices];  // a bit a key
    int upto = 0;            // hits of this lane and those before, a half a slice
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      hits[s] = keys[s].at_least(least);
      upto += __popc(hits[s]) << 16 * s;
    }
    for (int stride = 1; stride < 32; stride *= 2) {
      const int other = __shfl_up_sync(kAllLanes, upto, stride);
      if (lane >= stride) upto += other;
    }
    const int of_warp = __shfl_sync(kAllLanes, upto, 31), of_first = of_warp & 0xFFFF;
    const WarpSums::Place place = sums.add(of_first + (of_warp >> 16));
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      int to = count + place.before + (s == 0 ? upto & 0xFFFF : of_first + (upto >> 16)) - __popc(hits[s]);
      if (hits[s] == 0) continue;
      keys[s].each([&](int i, uint32_t key) {
        if ((hits[s] >> i & 1) == 0) return;
        m.candidates.position[to] = at + s * kSliceKeys + i;
        m.candidates.order[to] = static_cast<uint16_t>(key);
        ++to;
      });
    }
    count += place.all;
  }
  if (count > a.top_k) keep_best(m, sums, count, a.top_k);
  __syncthreads();
  for (int i = thread; i < a.top_k; i += kStreamThreads) selected[i] = m.candidates.position[i];
}

void launch_stream(const SelectParameters& p, int rows, cudaStream_t stream) {
  static const cudaError_t raised = cudaFuncSetAttribute(
      index_select_stream_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int{sizeof(StreamMemory)});
  cuda_check(raised, "cudaFuncSetAttribute of index_select");
  launch_overlapping(index_select_stream_kernel,
                     {.grid = dim3(rows), .threads = kStreamThreads, .shared_bytes = sizeof(StreamMemory)},
                     stream, p);
}

}  // namespace

void launch_index_select(const SelectParameters& p, int rows, bool shared, cudaStream_t stream) {
  if (!shared && p.top_k <= kMostStreamed) return launch_stream(p, rows, stream);
  const unsigned blocks = shared ? kSharedRow : 1;
  const auto kernel =
#if PERIGEE_SM90
      shared ? index_select_kernel<kSharedRow> :
#endif
             index_select_kernel<1>;
  launch_overlapping(
      kernel,
      {.grid = dim3(static_cast<unsigned>(rows) * blocks), .threads = kSelectThreads, .cluster = blocks},
      stream, p);
}

void CudaBackend::index_select(const IndexSelectArgs& a) {
  constexpr int kFewRows = 16, kLongRow = 16384;  // where a row is worth a cluster
  require(a.config.head_dim == kIndexKeyDim, "index_select: head_dim", a.config.head_dim, "128");
  const RowsView rows = tables_.rows();
  if (rows.rows == 0) return;
  Arena::Scope scope(scratch_);
  int64_t most_keys = 0;
  for (const SequenceRows& s : tables_.bounds()) most_keys = std::max(most_keys, s.start + s.rows);
  const int64_t stride = (most_keys + kScoreBlockKeys - 1) / kScoreBlockKeys * kScoreBlockKeys;
  const bool scored = most_keys > a.config.top_k;
  const int at_once =
      static_cast<int>(scored ? std::clamp<int64_t>(kMostWorkspace / (stride * 2), 1, rows.rows) : rows.rows);
  const bool shared = PERIGEE_SM90 && at_once <= kFewRows && most_keys >= kLongRow && scored;
  uint16_t* order = scored ? scratch_.take<uint16_t>(at_once * stride) : nullptr;
  PackedQuery packed;
#if PERIGEE_SM90
  if (scored && a.pages[0].index_format == IndexKeyFormat::kFp8 && a.config.num_heads == kPackedHeads)
    packed = pack_index_query(a.index_query, a.index_weight, rows.rows, scratch_, stream());
#endif
  for (int first = 0; first < rows.rows; first += at_once) {
    const int end = std::min(first + at_once, rows.rows);
    if (scored) {
      launch_index_scores({.query = a.index_query,
                           .weight = a.index_weight,
                           .packed = packed,
                           .rows = rows,
                           .pages = tables_.pages(a.pages),
                           .heads = a.config.num_heads,
                           .top_k = a.config.top_k,
                           .first_row = first,
                           .end_row = end,
                           .order = order,
                           .stride = stride},
                          tables_.bounds(), stream());
    }
    launch_index_select({.rows = rows,
                         .top_k = a.config.top_k,
                         .first_row = first,
                         .order = order,
                         .stride = stride,
                         .selected = a.selected,
                         .count = a.count},
                        end - first, shared, stream());
  }
}

}  // namespace perigee::cuda
