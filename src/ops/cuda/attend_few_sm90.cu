// sparse_attend and dense_attend of few rows on Hopper: a cluster of blocks shares a walk, in rounds of so
// many tiles that a block's part fits its shared memory. A round reads the whole latents of the tiles whose
// logits a block makes, asked for as soon as the logits of the round before are made, and its slice of the
// value's dimensions of all tiles, asked for at its beginning. Blocks then tell each other the maxima of
// their tiles, and the weights p̂; every block adds its slice of the value over all tiles in order.
#include "ops/cuda/attend.cuh"

#if PERIGEE_SM90

#include "ops/cuda/bulk_copies.cuh"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/fragments.cuh"
#include "ops/cuda/latent_fragments.cuh"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/wgmma.cuh"
#include "ops/elementary.h"

namespace perigee::cuda {
namespace {

constexpr int kHeads = kWalkHeads;
constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kQueryStride = kLatentDim + kRowPad;
constexpr int kSteps = kLatentDim / kStepK, kTileSteps = kKeyTile / kStepK;

// How kBlocks blocks share a round.
template <LatentFormat kFormat, int kBlocks>
struct Share {
  static constexpr int kTiles = kFormat == LatentFormat::kBf16 ? 1 : 2;  // whose logits a block makes
  static constexpr int kRound = kTiles * kBlocks;  // tile `rank + j · kBlocks` is a block's j-th
  static constexpr int kDims = kLatentRank / kBlocks,
                       kChains = kDims / 8;  // warps that add values: 8 dimensions each
  static constexpr int kKeys = kRound * kKeyTile;
  using Latents = EightLatents<kFormat>;
  using Slices = LatentSlices<kFormat, kDims>;
  static_assert(kChains <= kWarps && kTiles * kKeyTile == kTiles * kWarps * 8);

  // A tile as values need it, at the same place in every block.
  struct Weights {
    float sum[kHeads];          // Σp
    float rescale[kHeads];      // of the value before: from here on one copy brings it
    bf16 p[kHeads * kKeyTile];  // a tile of mma.cuh
    __device__ static int copied_bytes(int heads) {
      return int{sizeof(rescale)} + heads * kKeyTile * int{sizeof(bf16)};
    }
  };

  struct Memory {
    bf16 query[kHeads * kQueryStride];
    uint8_t latents[kWarps][kTiles][Latents::kBytes];
    uint8_t slices[Slices::bytes(kKeys)];
    alignas(128) Weights weights[kRound];
    float tile_max[kRound][kHeads];  // not scaled
    float warp_max[kTiles][kWarps][kHeads], warp_sum[kTiles][kWarps][kHeads];
    CopyBarrier maxima, weighted[kRound];
  };
};

// The cluster's walk.
struct ClusterWalk : Walk {
  int first_head, heads;  // heads that exist
  int64_t index;          // among the launch's walks

  __device__ ClusterWalk(const AttendParameters& a, int row, int group, int walk)
      : Walk(a, a.first_row + row, walk),
        first_head(group * kHeads),
        heads(min(kHeads, a.heads - first_head)),
        index((int64_t{row} * a.groups + group) * a.walks() + walk) {}
};

// Of a tile, a warp has eight keys as columns of its products, such that Σp adds keys 8, 1 and 16 apart
// within the warp and then those 32, 2 and 4 apart across warps.
__device__ int key_of_column(int warp, int column) {
  return column % 2 * 8 + column / 2 % 2 + column / 4 * 16 + warp % 2 * 32 + warp / 2 % 2 * 2 + warp / 4 * 4;
}

template <LatentFormat kFormat, int kBlocks>
class Block {
 public:
  using S = Share<kFormat, kBlocks>;

  __device__ Block(const AttendParameters& a, const ClusterWalk& walk, typename S::Memory& memory)
      : a_(a),
        walk_(walk),
        m_(memory),
        rank_(static_cast<int>(rank_in_cluster())),
        warp_(__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        page_(a.pages.page[walk.sequence]),
        carried_{-infinity(), -infinity()} {}

  __device__ void run() {
    if (walk_.tiles > 0) {
      request_query();
      request_latents(0);
    }
    for (int first = 0; first < walk_.tiles; first += S::kRound, phase_ ^= 1) {
      first_ = first;
      tiles_ = min(S::kRound, walk_.tiles - first);
      announce();
      request_slices();
      make_logits();
      __syncwarp();  // the warp's latents have been read
      if (first + S::kRound < walk_.tiles) request_latents(first + S::kRound);
      send_maxima();
      wait_barrier(&m_.maxima, phase_);
      make_weights();
      send_weights();
      if (warp_ < S::kChains) add_values();
      __syncthreads();  // whatever the next round brings has room
    }
    if (warp_ < S::kChains) write();
  }

 private:
  static __device__ float infinity() { return __uint_as_float(0x7F800000u); }
  // Over the threads that share a column.
  static __device__ float max_of_four(float x) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
    return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
  }

  // Where keys of the round that begins with tile `first` lie: null where there is none. Loads of one kind
  // are under way together.
  template <int kCount, typename KeyOf>
  __device__ void find_positions(int first, int (&position)[kCount], const KeyOf& key_of) const {
    const int left = walk_.keys - first * kKeyTile;
    if (walk_.list) {
      const int32_t* list = walk_.list + first * kKeyTile;
#pragma unroll
      for (int i = 0; i < kCount; ++i) position[i] = key_of(i) < left ? list[key_of(i)] : -1;
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        position[i] = key_of(i) < left ? walk_.position(first * kKeyTile + key_of(i)) : -1;
    }
  }
  __device__ const uint8_t* record(int position) const {
    if (position < 0) return nullptr;
    const unsigned p = static_cast<unsigned>(position);
    return page_[p / kPageTokens] + (a_.pages.latent_offset + p % kPageTokens * latent_bytes(kFormat));
  }

  // The bytes that barriers wait for in this round. Every block tells its maxima, of tiles that do not exist
  // too: so none writes to another that is still in the round before.
  __device__ void announce() {
    const int i = static_cast<int>(threadIdx.x);
    if (i == 0) arrive_expecting(&m_.maxima, int{sizeof(m_.tile_max)});
    if (i < tiles_) {
      const bool own = i % kBlocks == rank_;
      arrive_expecting(&m_.weighted[i],
                       int{sizeof(S::Weights::sum)} + (own ? 0 : S::Weights::copied_bytes(walk_.heads)));
    }
  }

  // A warp brings the latents that it reads itself: a lane, every kPart-th piece of a few keys.
  __device__ void request_latents(int first) {
    using Latents = typename S::Latents;
    constexpr int kPart = Latents::kPieces % 8 == 0 ? 8 : Latents::kPieces % 4 == 0 ? 4 : 2;
    constexpr int kAtOnce = 32 / kPart,
                  kOwn = S::kTiles * 8 / kAtOnce;  // keys a copy of the warp, of the lane
    static_assert(S::kTiles * 8 % kAtOnce == 0 && Latents::kPieces % kPart == 0);

    int position[kOwn];
    find_positions(first, position, [&](int i) {
      const int slot = i * kAtOnce + lane_ / kPart;
      return (rank_ + slot / 8 * kBlocks) * kKeyTile + key_of_column(warp_, slot % 8);
    });
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const uint8_t* r = record(position[i]);
      const int slot = i * kAtOnce + lane_ / kPart, piece = lane_ % kPart;
      const bool exists = r != nullptr;
      r = exists ? r + piece * 16 : reinterpret_cast<const uint8_t*>(a_.query);
      uint8_t* to = m_.latents[warp_][slot / 8] + piece * 8 * 16;
#pragma unroll
      for (int first_piece = 0; first_piece < Latents::kPieces; first_piece += kPart) {
        static_assert(8 % kPart == 0);  // so that `offset` of first_piece + piece is this
        copy_16(to + Latents::offset(first_piece, slot % 8 ^ piece), exists ? r + first_piece * 16 : r,
                exists);
      }
    }
    commit_copies();
  }

  __device__ void request_slices() {
    using Slices = typename S::Slices;
    constexpr int kShare = S::kKeys * Slices::kPieces / kThreads;  // pieces
    static_assert(S::kKeys * Slices::kPieces % kThreads == 0);
    const int thread = static_cast<int>(threadIdx.x);
    int position[kShare];
    find_positions(first_, position,
                   [&](int i) { return Slices::key_of((i * kThreads + thread) / Slices::kPieces); });
    const uint8_t* from[kShare];
#pragma unroll
    for (int i = 0; i < kShare; ++i) from[i] = record(position[i]);
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const int at = i * kThreads + thread;
      Slices::template copy<S::kKeys>(m_.slices, at / Slices::kPieces, at % Slices::kPieces, from[i], rank_,
                                      a_.query);
    }
    commit_copies();
  }

  __device__ void request_query() {
    constexpr int kPieces = kLatentDim / kPiece;
    const bf16* query = a_.query + (int64_t{walk_.row} * a_.heads + walk_.first_head) * kLatentDim;
#pragma unroll
    for (int head = 0; head < kHeads; head += 2) {  // a warp brings a part of two heads
      const int h = head + lane_ / 16, piece = warp_ * 16 + lane_ % 16;
      const bool exists = h < walk_.heads;
      if (piece < kPieces)
        copy_16(m_.query + h * kQueryStride + piece * kPiece,
                query + (exists ? h * kLatentDim + piece * kPiece : 0), exists);
    }
    commit_copies();
  }

  // s = q·k of the warp's keys: thread 4g + t keeps columns 2t, 2t + 1 of heads g and g + 8.
  __device__ void make_logits() {
    wait_copies<2>();  // of the query
    __syncthreads();
    FragmentA query[kSteps];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) query[k] = load_first(m_.query + k * kStepK, kQueryStride);
    wait_copies<1>();  // of latents
    __syncwarp();
#pragma unroll
    for (int j = 0; j < S::kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s_[j][i] = 0.0f;
    }
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int j = 0; j < S::kTiles; ++j)
        multiply_add(s_[j], query[k], S::Latents::load(m_.latents[warp_][j], k, a_.pages.latent_scale));
    }
  }

  // Whether key 0 or 1 of the thread's two exists in the block's j-th tile.
  __device__ bool exists(int j, int which) const {
    const int key =
        (first_ + rank_ + j * kBlocks) * kKeyTile + key_of_column(warp_, 2 * fragment_pair() + which);
    return key < walk_.keys;
  }

  __device__ void send_maxima() {
#pragma unroll
    for (int j = 0; j < S::kTiles; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float top = max_of_four(fmaxf(exists(j, 0) ? s_[j][2 * half] : -infinity(),
                                            exists(j, 1) ? s_[j][2 * half + 1] : -infinity()));
        if (fragment_pair() == 0) m_.warp_max[j][warp_][fragment_column() + 8 * half] = top;
      }
    }
    if (first_ == 0) wait_for_cluster();  // the barriers of all blocks are there
    __syncthreads();
    each_quarter([&](int j, int quarter, uint32_t to) {
      float4 top = read_quarter(m_.warp_max[j][0], quarter);
#pragma unroll
      for (int w = 1; w < kWarps; ++w) {
        const float4 x = read_quarter(m_.warp_max[j][w], quarter);
        top = {fmaxf(top.x, x.x), fmaxf(top.y, x.y), fmaxf(top.z, x.z), fmaxf(top.w, x.w)};
      }
      store_in(to, reinterpret_cast<float4*>(m_.tile_max[rank_ + j * kBlocks]) + quarter, top, &m_.maxima);
    });
  }

  // Threads by tile of the block, four heads and receiving block.
  template <typename Use>
  __device__ void each_quarter(const Use& use) const {
    constexpr int kQuarters = kHeads / 4;
    const int i = static_cast<int>(threadIdx.x);
    static_assert(S::kTiles * kQuarters * kBlocks <= kThreads);
    if (i < S::kTiles * kQuarters * kBlocks)
      use(i / kBlocks / kQuarters, i / kBlocks % kQuarters, i % kBlocks);
  }
  __device__ static float4 read_quarter(const float* heads, int quarter) {
    return reinterpret_cast<const float4*>(heads)[quarter];
  }

  // p̂ of the warp's keys, Σp of them, and by the first warp what the tile rescales by.
  __device__ void make_weights() {
    float before[S::kTiles][2];  // max of the tiles before
    float of_round[2] = {-infinity(), -infinity()};
#pragma unroll
    for (int j = 0; j < S::kTiles; ++j) before[j][0] = before[j][1] = -infinity();
#pragma unroll
    for (int i = 0; i < S::kRound / 4; ++i) {
      const int u = 4 * i + fragment_pair();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float top = m_.tile_max[u][fragment_column() + 8 * half];
        of_round[half] = fmaxf(of_round[half], top);
#pragma unroll
        for (int j = 0; j < S::kTiles; ++j)
          if (u < rank_ + j * kBlocks) before[j][half] = fmaxf(before[j][half], top);
      }
    }
#pragma unroll
    for (int j = 0; j < S::kTiles; ++j) {
      const int tile = rank_ + j * kBlocks;
      typename S::Weights& out = m_.weights[tile];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int head = fragment_column() + 8 * half;
        const float max_before = fmaxf(carried_[half], max_of_four(before[j][half])) * a_.scale;
        const float max = fmaxf(max_before, m_.tile_max[tile][head] * a_.scale);
        float p[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          p[e] = exists(j, e) ? exp2_decay(__fmaf_rn(s_[j][2 * half + e], a_.scale, -max)) : 0.0f;
          const int key = key_of_column(warp_, 2 * fragment_pair() + e);
          out.p[tile_offset(head, key / kPiece) + key % kPiece] = float_to_bf16(p[e]);
        }
        float sum = p[0] + p[1];
        sum += __shfl_xor_sync(kAllLanes, sum, 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 2);
        if (fragment_pair() == 0) {
          m_.warp_sum[j][warp_][head] = sum;
          if (warp_ == 0) out.rescale[head] = exp2_decay(max_before - max);
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) carried_[half] = fmaxf(carried_[half], max_of_four(of_round[half]));
  }

  __device__ void send_weights() {
    if (first_ + S::kRound < walk_.tiles) {  // of slices
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    publish_to_products();
    __syncthreads();
    if (lane_ == 0) {
#pragma unroll
      for (int j = 0; j < S::kTiles; ++j) {
        const int tile = rank_ + j * kBlocks;
        if (tile >= tiles_) break;
#pragma unroll 1
        for (int further = 1 + warp_; further < kBlocks; further += kWarps) {
          copy_in((rank_ + further) % kBlocks, m_.weights[tile].rescale,
                  S::Weights::copied_bytes(walk_.heads), &m_.weighted[tile]);
        }
      }
    }
    __syncwarp();
    each_quarter([&](int j, int quarter, uint32_t to) {
      const int tile = rank_ + j * kBlocks;
      if (tile >= tiles_) return;
      float4 x[kWarps];
#pragma unroll
      for (int w = 0; w < kWarps; ++w) x[w] = read_quarter(m_.warp_sum[j][w], quarter);
#pragma unroll
      for (int stride = 1; stride < kWarps; stride *= 2) {
#pragma unroll
        for (int w = 0; w < kWarps; w += 2 * stride) {
          x[w] = {x[w].x + x[w + stride].x, x[w].y + x[w + stride].y, x[w].z + x[w + stride].z,
                  x[w].w + x[w + stride].w};
        }
      }
      store_in(to, reinterpret_cast<float4*>(m_.weights[tile].sum) + quarter, x[0], &m_.weighted[tile]);
    });
  }

  // What a tile's products take, in registers.
  struct Tile {
    FragmentA p[kTileSteps];
    float sum[2], rescale[2];
  };
  __device__ Tile take(int tile) {
    wait_barrier(&m_.weighted[tile], phase_);
    const typename S::Weights& w = m_.weights[tile];
    Tile t;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      t.sum[half] = w.sum[fragment_column() + 8 * half];
      t.rescale[half] = w.rescale[fragment_column() + 8 * half];
    }
#pragma unroll
    for (int k = 0; k < kTileSteps; ++k) t.p[k] = load_a(w.p, 0, k);
    return t;
  }
  __device__ FragmentB value(int tile, int k) const {
    return S::Slices::template load<S::kKeys>(m_.slices, tile * kTileSteps + k, warp_, rank_,
                                              a_.pages.latent_scale);
  }

  // The warp's eight dimensions. While products of a tile run, the next one's operands are made.
  __device__ void add_values() {
    Tile now = take(0);
    FragmentB v[kTileSteps];
#pragma unroll
    for (int k = 0; k < kTileSteps; ++k) v[k] = value(0, k);
    for (int tile = 0; tile < tiles_; ++tile) {
      const int next_tile = min(tile + 1, tiles_ - 1);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum_[half] = __fmaf_rn(sum_[half], now.rescale[half], now.sum[half]);
        z_[2 * half] *= now.rescale[half];
        z_[2 * half + 1] *= now.rescale[half];
      }
      multiply_add(z_, now.p[0], v[0]);
      Tile next = take(next_tile);
      v[0] = value(next_tile, 0);
#pragma unroll
      for (int k = 1; k < kTileSteps; ++k) {
        multiply_add(z_, now.p[k], v[k]);
        v[k] = value(next_tile, k);
      }
      now = next;
    }
  }

  __device__ void write() const {
    const int dim = rank_ * S::kDims + warp_ * 8 + 2 * fragment_pair();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = fragment_column() + 8 * half;
      const float x = z_[2 * half], y = z_[2 * half + 1];
      if (a_.walks() == 1) {
        if (head >= walk_.heads) continue;
        const float inverse = __frcp_rn(sum_[half]);
        bf16* out = a_.out + (int64_t{walk_.row} * a_.heads + walk_.first_head + head) * kLatentRank + dim;
        *reinterpret_cast<uint32_t*>(out) = bf16_pair(x * inverse, y * inverse);
        continue;
      }
      const int64_t at = walk_.index * kHeads + head;
      *reinterpret_cast<float2*>(a_.value + at * kLatentRank + dim) = {x, y};
      if (rank_ == 0 && warp_ == 0 && fragment_pair() == 0)
        a_.sums[at] = {carried_[half] * a_.scale, sum_[half]};
    }
  }

  const AttendParameters& a_;
  const ClusterWalk& walk_;
  typename S::Memory& m_;
  const int rank_, warp_, lane_;
  uint8_t* const* const page_;
  int first_ = 0, tiles_ = 0;  // of the round
  uint32_t phase_ = 0;
  float s_[S::kTiles][4];
  float carried_[2];  // max of all rounds so far
  float z_[4] = {}, sum_[2] = {};
};

template <LatentFormat kFormat, int kBlocks>
__global__ void __launch_bounds__(kThreads, 1) attend_few_kernel(const __grid_constant__ AttendParameters a) {
  using Memory = typename Share<kFormat, kBlocks>::Memory;
  extern __shared__ __align__(128) uint8_t bytes[];
  Memory& m = *reinterpret_cast<Memory*>(bytes);
  if (threadIdx.x == 0) init_barrier(&m.maxima, 1);
  if (threadIdx.x < Share<kFormat, kBlocks>::kRound) init_barrier(&m.weighted[threadIdx.x], 1);
  publish_barriers();
  __syncthreads();
  arrive_at_cluster();
  wait_for_previous();
  let_next_begin();
  const ClusterWalk walk(a, static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y),
                         static_cast<int>(blockIdx.x) / kBlocks);
  if (walk.tiles == 0) wait_for_cluster();
  Block<kFormat, kBlocks>(a, walk, m).run();
  // Until nothing of this block is read or written by others.
  arrive_at_cluster();
  wait_for_cluster();
}

template <LatentFormat kFormat, int kBlocks>
class Launch {
 public:
  Launch(const AttendParameters& p, int rows, cudaStream_t stream) : p_(p) {
    attributes_[0].id = cudaLaunchAttributeClusterDimension;
    attributes_[0].val.clusterDim = {kBlocks, 1, 1};
    attributes_[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes_[1].val.programmaticStreamSerializationAllowed = 1;
    config_.gridDim = dim3(static_cast<unsigned>(kBlocks * p.walks()), static_cast<unsigned>(p.groups),
                           static_cast<unsigned>(rows));
    config_.blockDim = dim3(kThreads);
    config_.dynamicSmemBytes = sizeof(typename Share<kFormat, kBlocks>::Memory);
    config_.stream = stream;
    config_.attrs = attributes_;
    config_.numAttrs = 2;
  }
  // Walks that run at once.
  int at_once() const {
    static const int clusters = [this] {
      cuda_check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(config_.dynamicSmemBytes)),
                 "cudaFuncSetAttribute of attend_few");
      cuda_check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
                 "cudaFuncSetAttribute of attend_few");
      cudaLaunchConfig_t config = config_;
      config.numAttrs = 1;  // the cluster
      int count = 0;
      cuda_check(cudaOccupancyMaxActiveClusters(&count, kKernel, &config), "cudaOccupancyMaxActiveClusters");
      return count;
    }();
    return clusters;
  }
  void operator()() const { cuda_check(cudaLaunchKernelEx(&config_, kKernel, p_), "launching attend_few"); }

 private:
  static constexpr auto kKernel = attend_few_kernel<kFormat, kBlocks>;
  const AttendParameters& p_;
  cudaLaunchAttribute attributes_[2] = {};
  cudaLaunchConfig_t config_{};
};

template <LatentFormat kFormat>
bool launch(const AttendParameters& p, int rows, cudaStream_t stream) {
  const int walks = rows * p.groups * p.walks();
  const Launch<kFormat, 16> sixteen(p, rows, stream);
  const Launch<kFormat, 8> eight(p, rows, stream);
  if (walks <= sixteen.at_once()) {
    sixteen();
  } else if (walks <= 2 * eight.at_once()) {
    eight();
  } else {
    return false;
  }
  return true;
}

}  // namespace

bool launch_attend_few(const AttendParameters& p, int rows, cudaStream_t stream) {
  return for_format(p.pages.latent_format, [&](auto format) { return launch<format>(p, rows, stream); });
}

}  // namespace perigee::cuda

#endif
