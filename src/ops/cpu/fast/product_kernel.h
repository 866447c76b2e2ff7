// Products of tiled weights with rows of activations (tiles.h), for matrix_kernels.cpp alone.
//
// A few rows stream the tiles from memory: a partial's chain runs over K in registers, and so many partials
// are in flight that latencies hide. Many rows run over a block of tiles in turn.
#pragma once

#include <algorithm>
#include <cstring>

#include "ops/cpu/fast/matrix_kernels.h"
#include "ops/cpu/fast/simd.h"

namespace perigee::cpu::PERIGEE_ISA {

namespace {

// One pair of x, as a product broadcasts it.
#ifdef PERIGEE_ISA_AVX512
constexpr int kTileRows = 12;
struct Operand {
  uint32_t pair;
};
PERIGEE_SIMD Operand operand(uint32_t pair) { return {pair}; }
#else
constexpr int kTileRows = 6;
struct Operand {
  float odd, even;
};
PERIGEE_SIMD Operand operand(uint32_t pair) {
  Operand x;
  const uint32_t odd = pair & 0xFFFF0000u, even = pair << 16;
  std::memcpy(&x.odd, &odd, 4);
  std::memcpy(&x.even, &even, 4);
  return x;
}
#endif

// Rows cut into tiles of as many as registers hold sums of: nearly equal numbers, the larger ones first.
struct RowTiles {
  int count, rows, larger;  // tiles; rows of the smaller ones; how many have one row more
  explicit RowTiles(int all)
      : count((all + kTileRows - 1) / kTileRows),
        rows(all / std::max(1, count)),
        larger(all - rows * count) {}
  int begin(int tile) const { return tile * rows + std::min(tile, larger); }
};

constexpr int kFewTiles = 4;
constexpr int64_t kAhead = 1024;  // bytes

// Most rows of a product of MXFP4 without panels (mxfp4_kernel.h).
#ifdef PERIGEE_ISA_AVX512
constexpr int kMxfp4DirectRows = kMostProductRows;
#else
constexpr int kMxfp4DirectRows = 3;
#endif

// Calls F<R>::call for the R given at run time.
template <template <int> class F, int R = kTileRows, typename... Args>
PERIGEE_SIMD void for_rows(int rows, Args&&... args) {
  if (rows == R) {
    F<R>::call(args...);
  } else if constexpr (R > 1) {
    for_rows<F, R - 1>(rows, args...);
  }
}

// One partial of R rows: [steps][rows].
template <int R>
struct Spread {
  static void call(const bf16* const* x, int k, int partial, Operand* out) {
    for (int64_t column = 2 * kPartialOrder[partial]; column < k_blocks(k) * 32; column += 32) {
      for (int r = 0; r < R; ++r) {
        uint32_t pair = 0;
        if (column + 1 < k) {
          std::memcpy(&pair, x[r] + column, 4);
        } else if (column < k) {
          pair = x[r][column];
        }
        *out++ = operand(pair);
      }
    }
  }
};

// For products straight from the tiles: [row tiles][16 partials][steps][rows]. For panels: [16 partials][row
// tiles][steps][rows], so that all rows run over a panel in one stream.
void spread(const bf16* const* x, int rows, int k, bool mxfp4, std::byte* out) {
  const bool panels = mxfp4 && rows > kMxfp4DirectRows;
  auto* to = reinterpret_cast<Operand*>(out);
  const RowTiles tiles(rows);
  const auto one = [&](int tile, int partial) {
    const int begin = tiles.begin(tile), count = tiles.begin(tile + 1) - begin;
    for_rows<Spread>(count, x + begin, k, partial, to);
    to += count * k_blocks(k);
  };
  if (panels) {
    for (int partial = 0; partial < kTilePartials; ++partial) {
      for (int tile = 0; tile < tiles.count; ++tile) one(tile, partial);
    }
  } else {
    for (int tile = 0; tile < tiles.count; ++tile) {
      for (int partial = 0; partial < kTilePartials; ++partial) one(tile, partial);
    }
  }
}

// The fixed tree over the partials of 16 outputs; partials are `stride` floats apart.
template <int stride>
PERIGEE_SIMD F32x16 tree_of_partials(const float* first) {
  F32x16 t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) t[i] = add(load(first + 2 * i * stride), load(first + (2 * i + 1) * stride));
  const F32x16 low = add(add(t[0], t[1]), add(t[2], t[3])), high = add(add(t[4], t[5]), add(t[6], t[7]));
  return add(low, high);
}

// R rows times N blocks, P partials at a time: N · P chains of R sums are in flight, enough to hide the
// latency of a fused multiply-add. Several blocks, or several partials of one, are several streams of memory,
// which together draw more of it than one. `ahead` bytes further on, tiles are prefetched.
template <int R, int N, int P>
void direct_product(const ProductArgs& a, int64_t ahead) {
  alignas(64) float sum[N][kTilePartials][R][kTileOutputs];
  const auto* x = reinterpret_cast<const Operand*>(a.x);
  for (int group = 0; group < kTilePartials; group += P) {
    const std::byte* w = a.tiles + group * a.partial_bytes;
    const Operand* at = x + group * a.steps * R;
    F32x16 acc[N][P][R];
#pragma GCC unroll 24
    for (int i = 0; i < N * P * R; ++i) acc[i / (P * R)][i / R % P][i % R] = zero();
    for (int64_t step = 0; step < a.steps; ++step) {
#pragma GCC unroll 4
      for (int i = 0; i < N * P; ++i) {
        const int n = i / P, p = i % P;
        const std::byte* tile = w + n * a.block_bytes + p * a.partial_bytes;
        const Operand* pairs_of_rows = at + p * a.steps * R;
        _mm_prefetch(reinterpret_cast<const char*>(tile + ahead), _MM_HINT_T0);
#ifdef PERIGEE_ISA_AVX512
        const I32x16 pairs = load_bits(tile);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r)
          acc[n][p][r] = pair_fma(splat_bits(pairs_of_rows[r].pair), pairs, acc[n][p][r]);
#else
        const F32x16 odd = odd_of(load_bits(tile));
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) acc[n][p][r] = fma(splat(pairs_of_rows[r].odd), odd, acc[n][p][r]);
        const F32x16 even = even_of(load_bits(tile));
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) acc[n][p][r] = fma(splat(pairs_of_rows[r].even), even, acc[n][p][r]);
#endif
      }
      at += R;
      w += kTileStep;
    }
#pragma GCC unroll 24
    for (int i = 0; i < N * P * R; ++i)
      store(sum[i / (P * R)][group + i / R % P][i % R], acc[i / (P * R)][i / R % P][i % R]);
  }
  for (int n = 0; n < N; ++n) {
    for (int r = 0; r < R; ++r)
      store(a.y + r * a.y_stride + n * kTileOutputs, tree_of_partials<R * kTileOutputs>(sum[n][0][r]));
  }
}

// Blocks that a tile of rows multiplies with side by side.
constexpr int blocks_abreast(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

// One block, or as many as go abreast.
template <int R>
struct DirectProduct {
  static void call(const ProductArgs& a, int64_t ahead) {
    constexpr int kChains = R == 1 ? 4 : R <= 3 || kTileRows > 6 ? 2 : 1;
    if (a.blocks > 1) {
      direct_product<R, blocks_abreast(R), 1>(a, ahead);
    } else {
      direct_product<R, 1, kChains>(a, ahead);
    }
  }
};

// Blocks of 16 bf16 outputs times any rows up to kMostProductRows. A few tiles of rows: a block stays in the
// caches for all of them, and the next one is fetched meanwhile. Many: a tile of rows stays there for all
// blocks.
void product(const ProductArgs& a) {
  const RowTiles tiles(a.rows);
  const auto compute = [&](int tile, int block, int blocks) {
    const int begin = tiles.begin(tile);
    ProductArgs part = a;
    part.tiles = a.tiles + block * a.block_bytes;
    part.blocks = blocks;
    part.rows = tiles.begin(tile + 1) - begin;
    part.x = a.x + begin * a.steps * kTilePartials * static_cast<int64_t>(sizeof(Operand));
    part.y = a.y + begin * a.y_stride + block * kTileOutputs;
    for_rows<DirectProduct>(part.rows, part, tile > 0 ? a.block_bytes : part.rows <= 3 ? kAhead : 4 * kAhead);
  };
  if (tiles.count == 1) {
    const int abreast = blocks_abreast(a.rows);
    int block = 0;
    for (; block + abreast <= a.blocks; block += abreast) compute(0, block, abreast);
    for (; block < a.blocks; ++block) compute(0, block, 1);
  } else if (tiles.count <= kFewTiles) {
    for (int block = 0; block < a.blocks; ++block) {
      for (int tile = 0; tile < tiles.count; ++tile) compute(tile, block, 1);
    }
  } else {
    for (int tile = 0; tile < tiles.count; ++tile) {
      for (int block = 0; block < a.blocks; ++block) compute(tile, block, 1);
    }
  }
}

}  // namespace

}  // namespace perigee::cpu::PERIGEE_ISA
