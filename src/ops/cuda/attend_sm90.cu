// sparse_attend and dense_attend of many rows on Hopper: a block takes one item of attend_work_sm90.cuh after
// the other. Two warpgroups bring tiles of 64 keys as bf16 into two buffers (latent_loader.cuh); of two
// others the first makes logits and weights of even tiles, the second of odd ones, and both add values: 256
// of the 512 dimensions each, of every tile in order. While one makes weights the other multiplies.
//
// Weights p̂ go from registers into the owner's products, and to the other warpgroup through shared memory, in
// place of the keys' last 64 dimensions, which only logits need.
#include "ops/cuda/attend.cuh"

#if PERIGEE_SM90

#include "ops/cuda/attend_work_sm90.cuh"
#include "ops/cuda/bulk_copies.cuh"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/latent_loader.cuh"
#include "ops/cuda/wgmma.cuh"
#include "ops/elementary.h"

namespace perigee::cuda {
namespace {

constexpr int kHeads = kGroupRows;  // of a block
constexpr int kLoaders = kLoaderWarps * 32, kThreads = 2 * kWarpgroup + kLoaders;
constexpr int kValueDims = kLatentRank / 2;  // of a warpgroup
constexpr int kHalfDims = kValueDims / 2;    // of one product
constexpr int kWarpsOfGroup = kWarpgroup / 32;
constexpr int kWeightTile = kLatentRank / kTileK;  // the one of nine that makes room for p̂
static_assert(kHeads == kKeyTile);

// A head after a tile.
struct alignas(16) State {
  float max, sum;
  float rescale;  // of what came before the tile
  float unused;
};

struct Memory {
  bf16 query[kLatentTiles][kHeads * kTileK];
  bf16 keys[2][kLatentTiles][kTileValues];
  State state[2][kHeads];
  // Of the buffers: keys have come; both warpgroups are done; p̂ and state have been written.
  CopyBarrier full[2], free[2], weighted[2];
  CopyBarrier query_full, query_free;
};

// Two heads of a thread: rows 16·warp + g of the product and 8 later.
struct TwoHeads {
  float max[2], sum[2], rescale[2];
};

// One of the two warpgroups that multiply.
template <int kGroup>
class Multiplier {
 public:
  __device__ Multiplier(const AttendParameters& a, Memory& memory)
      : a_(a), m_(memory), warp_(static_cast<int>(threadIdx.x) % kWarpgroup / 32) {}

  __device__ void run(const AttendItem& item, const Walk& walk) {
#pragma unroll
    for (int j = 0; j < kHalfDims / 2; ++j) z_[0][j] = z_[1][j] = 0.0f;
    heads_ = {.max = {-infinity(), -infinity()}, .sum = {0.0f, 0.0f}, .rescale = {0.0f, 0.0f}};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int later = item.rows - 1 - min(product_row(i) / item.heads, item.rows - 1);
      keys_[i] = later == 0 ? walk.keys : DenseKeys(a_, item.walk, walk.visible - later).keys;
    }
    if (walk.tiles > 0) {
      wait_barrier(&m_.query_full, query_phase_);
      int tile = 0;
      for (; tile + 1 < walk.tiles; tile += 2) add_two(walk, tile);
      if (tile < walk.tiles) add_last(walk, tile);
      query_phase_ ^= 1;
    }
    write(item, walk.tiles > 0);
  }

 private:
  static __device__ float infinity() { return __uint_as_float(0x7F800000u); }
  // Of the thread's i-th head.
  __device__ int product_row(int i) const {
    return warp_ * 16 + static_cast<int>(threadIdx.x) % 32 / 4 + 8 * i;
  }

  __device__ void add_two(const Walk& walk, int tile) {
    const bool last = tile + 2 + kGroup >= walk.tiles;  // of this warpgroup
    if constexpr (kGroup == 0) {
      make_logits<0>(last);
      FragmentA weight[4];
      make_weights<0>(tile, weight);
      add_own<0>(weight);
      take_state<1>();
      start_other<1>();
      finish<1>();
    } else {
      make_logits<1>(last);
      take_state<0>();
      start_other<0>();
      FragmentA weight[4];
      make_weights<1>(tile + 1, weight);
      finish<0>();
      add_own<1>(weight);
    }
  }
  __device__ void add_last(const Walk& walk, int tile) {
    if constexpr (kGroup == 0) {
      make_logits<0>(true);
      FragmentA weight[4];
      make_weights<0>(tile, weight);
      add_own<0>(weight);
    } else {
      if (walk.tiles == 1) arrive_warp(&m_.query_free);
      take_state<0>();
      start_other<0>();
      finish<0>();
    }
  }

  // Until products may read the keys, and the query, that have come.
  template <int kBuffer>
  __device__ void wait_tile() {
    wait_barrier(&m_.full[kBuffer], phase_[kBuffer]);
    publish_to_products();  // copies that came after the loader had handed them over
  }

  // s = q·k of the tile in buffer kBuffer.
  template <int kBuffer>
  __device__ void make_logits(bool last) {
    wait_tile<kBuffer>();
#pragma unroll
    for (float& s : s_) s = 0.0f;
    start_products();
#pragma unroll
    for (int t = 0; t < kLatentTiles; ++t) {
      const uint64_t query = operand(m_.query[t]), key = operand(m_.keys[kBuffer][t]);
#pragma unroll
      for (int k = 0; k < kTileK / kStepK; ++k)
        multiply_async(s_, query + k * kNextStep, key + k * kNextStep);
    }
    commit_products();
    wait_products<0>();
    pin(s_);
    if (last) arrive_warp(&m_.query_free);
  }

  // From logits and the state before the tile to p̂ and the state after it, here and in shared memory.
  template <int kBuffer>
  __device__ void make_weights(int index, FragmentA (&weight)[4]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // head g, head g + 8: s_[4j + 2i + e] is key 8j + 2t + e
      const int left = keys_[i] - index * kKeyTile;
      float top = -infinity();
      if (left >= kKeyTile) {
#pragma unroll
        for (int j = 0; j < 8; ++j) top = fmaxf(top, fmaxf(s_[4 * j + 2 * i], s_[4 * j + 2 * i + 1]));
      } else {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (8 * j + lane % 4 * 2 + e < left) top = fmaxf(top, s_[4 * j + 2 * i + e]);
        }
      }
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      const float max = fmaxf(heads_.max[i], top * a_.scale);
      heads_.rescale[i] = exp2_decay(heads_.max[i] - max);
      heads_.max[i] = max;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& s = s_[4 * j + 2 * i + e];
          s = exp2_decay(__fmaf_rn(s, a_.scale, -max));
          if (left < kKeyTile && 8 * j + lane % 4 * 2 + e >= left) s = 0.0f;
        }
      }
      float sum[4];  // of 16 keys
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float *p = &s_[8 * j + 2 * i], *later = p + 4;
        sum[j] = (p[0] + later[0]) + (p[1] + later[1]);
      }
      float all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
      all += __shfl_xor_sync(kAllLanes, all, 1);
      all += __shfl_xor_sync(kAllLanes, all, 2);
      heads_.sum[i] = __fmaf_rn(heads_.sum[i], heads_.rescale[i], all);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int x = 0; x < 4; ++x) weight[k].x[x] = bf16_pair(s_[8 * k + 2 * x], s_[8 * k + 2 * x + 1]);
    }

    bf16* tile = m_.keys[kBuffer][kWeightTile];
    sync_threads<1 + kGroup, kWarpgroup>();  // all four warps have their logits: nobody reads these keys
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                       shared_address(tile + tile_offset(warp_ * 16 + lane % 16, 2 * k + lane / 16))),
                   "r"(weight[k].x[0]), "r"(weight[k].x[1]), "r"(weight[k].x[2]), "r"(weight[k].x[3])
                   : "memory");
    }
    if (lane % 4 == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        m_.state[kBuffer][product_row(i)] = {heads_.max[i], heads_.sum[i], heads_.rescale[i], 0.0f};
      }
    }
    publish_to_products();
    arrive_warp(&m_.weighted[kBuffer]);
  }

  // The state after a tile of the other warpgroup.
  template <int kBuffer>
  __device__ void take_state() {
    wait_tile<kBuffer>();
    wait_barrier(&m_.weighted[kBuffer], phase_[kBuffer]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const State s = m_.state[kBuffer][product_row(i)];
      heads_.max[i] = s.max, heads_.sum[i] = s.sum, heads_.rescale[i] = s.rescale;
    }
  }

  __device__ void rescale() {
    if (__all_sync(kAllLanes, heads_.rescale[0] == 1.0f && heads_.rescale[1] == 1.0f)) return;
#pragma unroll
    for (int j = 0; j < kHalfDims / 2; ++j) {
      z_[0][j] *= heads_.rescale[j / 2 % 2];
      z_[1][j] *= heads_.rescale[j / 2 % 2];
    }
  }
  template <int kBuffer>
  __device__ uint64_t values(int half) const {
    return operand(m_.keys[kBuffer][(2 * kGroup + half) * (kHalfDims / kTileK)],
                   kTileValues * int{sizeof(bf16)});
  }

  // z += p̂ · values, p̂ in registers.
  template <int kBuffer>
  __device__ void add_own(const FragmentA (&weight)[4]) {
    rescale();
    start_products();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        multiply_async<true>(z_[half], weight[k], values<kBuffer>(half) + k * kNextStepDown);
    }
    commit_products();
    finish<kBuffer>();
  }
  // The same with p̂ of the other warpgroup, until finish().
  template <int kBuffer>
  __device__ void start_other() {
    rescale();
    start_products();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        multiply_async<false, true>(z_[half], operand(m_.keys[kBuffer][kWeightTile]) + k * kNextStep,
                                    values<kBuffer>(half) + k * kNextStepDown);
      }
    }
    commit_products();
  }
  template <int kBuffer>
  __device__ void finish() {
    wait_products<0>();
    pin(z_[0]);
    pin(z_[1]);
    arrive_warp(&m_.free[kBuffer]);
    phase_[kBuffer] ^= 1;
  }

  // Dimensions 8j + 2t and 8j + 2t + 1 of the thread's i-th head.
  __device__ float2 z(int j, int i) const {
    const float* pair = &z_[j / (kHalfDims / 8)][j % (kHalfDims / 8) * 4 + 2 * i];
    return {pair[0], pair[1]};
  }

  __device__ void write(const AttendItem& item, bool any_key) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int walk_rows = a_.walks() * kWalkHeads;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int h = product_row(i);
      if (h >= item.product_rows()) continue;
      const int row = item.row + h / item.heads, head = item.first_head + h % item.heads;
      const int dim = kGroup * kValueDims + lane % 4 * 2;
      if (a_.walks() == 1) {
        const float inverse = __frcp_rn(heads_.sum[i]);
        bf16* out = a_.out + (int64_t{a_.first_row + row} * a_.heads + head) * kLatentRank + dim;
#pragma unroll
        for (int j = 0; j < kValueDims / 8; ++j)
          *reinterpret_cast<uint32_t*>(out + j * 8) = bf16_pair(z(j, i).x * inverse, z(j, i).y * inverse);
        continue;
      }
      const int64_t at = (int64_t{row} * a_.groups + head / kWalkHeads) * walk_rows + item.walk * kWalkHeads +
                         head % kWalkHeads;
      float* value = a_.value + at * kLatentRank + dim;
      if (any_key) {
#pragma unroll
        for (int j = 0; j < kValueDims / 8; ++j) *reinterpret_cast<float2*>(value + j * 8) = z(j, i);
      }
      if (kGroup == 0 && lane % 4 == 0) a_.sums[at] = {heads_.max[i], heads_.sum[i]};
    }
  }

  const AttendParameters& a_;
  Memory& m_;
  int warp_;
  uint32_t phase_[2] = {0, 0}, query_phase_ = 0;
  float z_[2][kHalfDims / 2], s_[kKeyTile / 2];
  TwoHeads heads_;
  int keys_[2];  // of the walk that the row of each head sees
};

// The queries of an item, heads of rows side by side; zeros behind.
__device__ void load_query(const AttendParameters& a, const AttendItem& item, int thread, Memory& m) {
  constexpr int kPieces = kLatentDim / kPiece;
  const bf16* query = a.query + (int64_t{a.first_row + item.row} * a.heads + item.first_head) * kLatentDim;
#pragma unroll 2
  for (int at = thread; at < kHeads * kPieces; at += kLoaders) {
    const int row = at / kPieces, piece = at % kPieces;
    const bool exists = row < item.product_rows();
    copy_16(m.query[piece / 8] + tile_offset(row, piece % 8),
            query + (exists ? row : 0) * kLatentDim + piece * kPiece, exists);
  }
  commit_copies();
}

template <LatentFormat kFormat>
__global__ void __launch_bounds__(kThreads, 1)
    attend_rows_kernel(const __grid_constant__ AttendParameters a, const __grid_constant__ AttendWork work) {
  extern __shared__ __align__(1024) uint8_t bytes[];
  Memory& m = *reinterpret_cast<Memory*>(bytes);
  constexpr bool kCopied = kFormat == LatentFormat::kBf16;  // by copies that arrive by themselves
  constexpr int kFilled = kCopied ? kLoaders : kLoaderWarps;
  if (threadIdx.x == 0) {
    for (int b = 0; b < 2; ++b) {
      init_barrier(&m.full[b], kFilled);
      init_barrier(&m.free[b], 2 * kWarpsOfGroup);
      init_barrier(&m.weighted[b], kWarpsOfGroup);
    }
    init_barrier(&m.query_full, kFilled);
    init_barrier(&m.query_free, 2 * kWarpsOfGroup);
  }
  __syncthreads();

  const int group = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (group == 0) {
    more_registers<208>();
    Multiplier<0> multiplier(a, m);
    work.each_item<kFormat>(a, [&](const AttendItem& item, const Walk& walk) { multiplier.run(item, walk); });
  } else if (group == 1) {
    more_registers<208>();
    Multiplier<1> multiplier(a, m);
    work.each_item<kFormat>(a, [&](const AttendItem& item, const Walk& walk) { multiplier.run(item, walk); });
  } else {
    fewer_registers<48>();
    const int thread = static_cast<int>(threadIdx.x) - 2 * kWarpgroup;
    uint32_t free_phase = 3, query_phase = 1;  // a bit a buffer
    work.each_item<kFormat>(a, [&](const AttendItem& item, const Walk& walk) {
      if (walk.tiles == 0) return;
      wait_barrier(&m.query_free, query_phase);
      query_phase ^= 1;
      load_query(a, item, thread, m);
      load_latents<kFormat>(
          a, walk, thread / 32,
          [&](int tile) {
            const int b = tile % 2;
            wait_barrier(&m.free[b], free_phase >> b & 1);
            free_phase ^= 1 << b;
            return m.keys[b][0];
          },
          [&](int tile) {
            if constexpr (kCopied) {
              if (tile == 0) arrive_after_copies(&m.query_full);
              arrive_after_copies(&m.full[tile % 2]);
            } else {
              if (tile == 0) wait_copies<0>();  // of the query
              publish_to_products();
              if (tile == 0) arrive_warp(&m.query_full);
              arrive_warp(&m.full[tile % 2]);
            }
          });
    });
  }
}

template <LatentFormat kFormat>
void launch(const AttendParameters& p, int rows, cudaStream_t stream) {
  static const cudaError_t raised = cudaFuncSetAttribute(
      attend_rows_kernel<kFormat>, cudaFuncAttributeMaxDynamicSharedMemorySize, int{sizeof(Memory)});
  cuda_check(raised, "cudaFuncSetAttribute of attend_rows");
  static const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  const AttendWork work(p, rows);
  const unsigned blocks = static_cast<unsigned>(std::min(work.places(p), multiprocessors));
  attend_rows_kernel<kFormat><<<blocks, kThreads, sizeof(Memory), stream>>>(p, work);
  cuda_check(cudaGetLastError(), "launching attend_rows");
}

}  // namespace

void launch_attend_rows(const AttendParameters& p, int rows, cudaStream_t stream) {
  for_format(p.pages.latent_format, [&](auto format) { launch<format>(p, rows, stream); });
}

}  // namespace perigee::cuda

#endif
