// Products of MXFP4 tiles (tiles.h): the nibbles are widened where they are used, and never in memory beyond
// one block of outputs. On AVX2, few rows widen them in registers; for more, a partial of the block is
// widened once into panels of fp32 in the L1 cache, and all rows run over those.
#pragma once

#include "ops/cpu/fast/product_kernel.h"

namespace perigee::cpu::PERIGEE_ISA {

namespace {

// A vector of 32 values of MXFP4 as eight fp32 each: outputs 8j … 8j + 7 in vector j.
struct Mxfp4Values {
  __m256 v[4];
};

// The values of 32 nibbles (in the low halves of the bytes, in the order of kMxfp4Order), times their scales.
PERIGEE_SIMD Mxfp4Values mxfp4_values(__m256i nibbles, const float* scale) {
  // The two bytes of each code's bf16.
  const __m256i high = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0x00, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, char(0x80), char(0xBF), char(0xBF),
                    char(0xBF), char(0xC0), char(0xC0), char(0xC0), char(0xC0)));
  const __m256i low = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0x00, 0x00, char(0x80), char(0xC0), 0x00, 0x40, char(0x80), char(0xC0), 0x00, 0x00,
                    char(0x80), char(0xC0), 0x00, 0x40, char(0x80), char(0xC0)));
  const __m256i h = _mm256_shuffle_epi8(high, nibbles), l = _mm256_shuffle_epi8(low, nibbles);
  const __m256i a = _mm256_unpacklo_epi8(l, h), b = _mm256_unpackhi_epi8(l, h);
  const __m256i zero = _mm256_setzero_si256();
  const __m256i wide[4] = {_mm256_unpacklo_epi16(zero, a), _mm256_unpackhi_epi16(zero, a),
                           _mm256_unpacklo_epi16(zero, b), _mm256_unpackhi_epi16(zero, b)};
  Mxfp4Values out;
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    out.v[j] = _mm256_mul_ps(_mm256_castsi256_ps(wide[j]), _mm256_loadu_ps(scale + 8 * j));
  }
  return out;
}
PERIGEE_SIMD __m256i even_nibbles(__m256i pairs) { return _mm256_and_si256(pairs, _mm256_set1_epi8(15)); }
PERIGEE_SIMD __m256i odd_nibbles(__m256i pairs) {
  return _mm256_and_si256(_mm256_srli_epi16(pairs, 4), _mm256_set1_epi8(15));
}
PERIGEE_SIMD __m256i load_bytes(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// 2^(code − 127): 0 for code 0, whose subnormal the arithmetic flushes, and NaN for 255.
void mxfp4_scales(const std::byte* scales, int64_t steps, float* out) {
  const __m256i nan_code = _mm256_set1_epi32(255), nan = _mm256_set1_epi32(0x7FC00000);
  for (int64_t step = 0; step < steps; ++step, scales += kMxfp4Outputs, out += kMxfp4Outputs) {
    for (int j = 0; j < 4; ++j) {  // outputs 8j … 8j + 3 stand at byte 4j, the next four 16 bytes later
      uint32_t first, second;
      std::memcpy(&first, scales + 4 * j, 4);
      std::memcpy(&second, scales + 16 + 4 * j, 4);
      const __m256i code =
          _mm256_cvtepu8_epi32(_mm_set_epi64x(0, static_cast<int64_t>(uint64_t{second} << 32 | first)));
      const __m256i value =
          _mm256_blendv_epi8(_mm256_slli_epi32(code, 23), nan, _mm256_cmpeq_epi32(code, nan_code));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8 * j), value);
    }
  }
}

#ifdef PERIGEE_ISA_AVX512

// The block as two blocks of bf16 tiles, then products of those. Rounding to bf16 cuts off zeros alone: e2m1
// has two significant bits.
int64_t scratch_bytes(int64_t steps) { return 2 * kTilePartials * steps * kTileStep; }

void mxfp4_product(const ProductArgs& a) {
  const int64_t block = kTilePartials * a.steps * kTileStep;
  for (int partial = 0; partial < kTilePartials; ++partial) {
    const std::byte* w = a.tiles + partial * a.partial_bytes;
    std::byte* out = a.scratch + partial * a.steps * kTileStep;
    for (int64_t step = 0; step < a.steps; ++step, w += kMxfp4Step, out += kTileStep) {
      const __m256i pairs = load_bytes(w);
      const Mxfp4Values even = mxfp4_values(even_nibbles(pairs), a.scale + step * kMxfp4Outputs),
                        odd = mxfp4_values(odd_nibbles(pairs), a.scale + step * kMxfp4Outputs);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const __m256i low = _mm256_srli_epi32(_mm256_castps_si256(even.v[j]), 16);
        const __m256i pair = _mm256_blend_epi16(low, _mm256_castps_si256(odd.v[j]), 0xAA);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + j / 2 * block + j % 2 * 32), pair);
      }
    }
  }
  ProductArgs halves = a;
  halves.tiles = a.scratch;
  halves.block_bytes = block;
  halves.partial_bytes = a.steps * kTileStep;
  halves.blocks = 2;
  product(halves);
}

#else

template <int R>
struct DirectMxfp4Product {
  static void call(const ProductArgs& a) {
    alignas(64) float sum[kTilePartials][R][kMxfp4Outputs];
    const auto* at = reinterpret_cast<const Operand*>(a.x);
    for (int partial = 0; partial < kTilePartials; ++partial) {
      const std::byte* w = a.tiles + partial * a.partial_bytes;
      __m256 acc[R][4];
#pragma GCC unroll 12
      for (int i = 0; i < 4 * R; ++i) acc[i / 4][i % 4] = _mm256_setzero_ps();
      for (int64_t step = 0; step < a.steps; ++step, w += kMxfp4Step, at += R) {
        _mm_prefetch(reinterpret_cast<const char*>(w + kAhead), _MM_HINT_T0);
        const __m256i pairs = load_bytes(w);
        const Mxfp4Values odd = mxfp4_values(odd_nibbles(pairs), a.scale + step * kMxfp4Outputs);
#pragma GCC unroll 12
        for (int i = 0; i < 4 * R; ++i) {
          acc[i / 4][i % 4] = _mm256_fmadd_ps(_mm256_set1_ps(at[i / 4].odd), odd.v[i % 4], acc[i / 4][i % 4]);
        }
        const Mxfp4Values even = mxfp4_values(even_nibbles(pairs), a.scale + step * kMxfp4Outputs);
#pragma GCC unroll 12
        for (int i = 0; i < 4 * R; ++i) {
          acc[i / 4][i % 4] =
              _mm256_fmadd_ps(_mm256_set1_ps(at[i / 4].even), even.v[i % 4], acc[i / 4][i % 4]);
        }
      }
#pragma GCC unroll 12
      for (int i = 0; i < 4 * R; ++i) _mm256_store_ps(sum[partial][i / 4] + i % 4 * 8, acc[i / 4][i % 4]);
    }
    for (int r = 0; r < R; ++r) {
      for (int half = 0; half < kMxfp4Outputs; half += kTileOutputs) {
        store(a.y + r * a.y_stride + half, tree_of_partials<R * kMxfp4Outputs>(&sum[0][r][half]));
      }
    }
  }
};

constexpr int kPanelStep = 2 * kTileOutputs;  // floats of a K block: 16 odd elements, 16 even ones
constexpr int kTreeLevels = 4;

// Panels of one partial of the two halves of a block's outputs, and where all rows' sums of it go. The fixed
// tree is built as a binary counter: level i holds the sum of the last 2^i partials that still waits for its
// neighbour.
struct Panels {
  float* panel;   // [2, steps, 32]
  float* levels;  // [2, kTreeLevels, kMostProductRows, 16]
  int64_t steps;
  int partial;
  float* y;  // [rows, 32] the results after the last partial
  int64_t y_stride;
};
// `tiles` tiles of R rows from `row` on, over both halves, which share a tile's activations in the L1 cache.
template <int R>
struct PanelProduct {
  [[gnu::noinline]] static void call(const Panels& p, int row, int tiles, const Operand* x) {
    const int64_t steps = p.steps;
    for (; tiles > 0; --tiles, row += R, x += R * steps) {
      for (int half = 0; half < 2; ++half) {
        const float* panel = p.panel + half * steps * kPanelStep;
        const Operand* at = x;
        F32x16 acc[R];
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) acc[r] = zero();
        for (int64_t step = 0; step < steps; ++step) {
          const F32x16 odd = load(panel);
#pragma GCC unroll 6
          for (int r = 0; r < R; ++r) acc[r] = fma(splat(at[r].odd), odd, acc[r]);
          const F32x16 even = load(panel + kTileOutputs);
#pragma GCC unroll 6
          for (int r = 0; r < R; ++r) acc[r] = fma(splat(at[r].even), even, acc[r]);
          at += R;
          panel += kPanelStep;
        }
        float* level = p.levels + (half * kTreeLevels * kMostProductRows + row) * kTileOutputs;
        for (int partial = p.partial; partial & 1; partial >>= 1) {
#pragma GCC unroll 6
          for (int r = 0; r < R; ++r) acc[r] = add(load(level + r * kTileOutputs), acc[r]);
          level += kMostProductRows * kTileOutputs;
        }
        const bool last = p.partial == kTilePartials - 1;
        float* out = last ? p.y + row * p.y_stride + half * kTileOutputs : level;
        const int64_t stride = last ? p.y_stride : kTileOutputs;
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) store(out + r * stride, acc[r]);
      }
    }
  }
};

int64_t scratch_bytes(int64_t steps) {
  return 2 * (steps * kPanelStep + kTreeLevels * kMostProductRows * kTileOutputs) * sizeof(float);
}

// Widens a partial of the block. The next one is prefetched: behind the last, that is the next block's.
PERIGEE_SIMD void widen(const ProductArgs& a, int partial, float* panel) {
  const std::byte* w = a.tiles + partial * a.partial_bytes;
  for (int64_t step = 0; step < a.steps; ++step, w += kMxfp4Step, panel += kPanelStep) {
    _mm_prefetch(reinterpret_cast<const char*>(w + a.partial_bytes), _MM_HINT_T0);
    const __m256i pairs = load_bytes(w);
    const Mxfp4Values odd = mxfp4_values(odd_nibbles(pairs), a.scale + step * kMxfp4Outputs),
                      even = mxfp4_values(even_nibbles(pairs), a.scale + step * kMxfp4Outputs);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      float* to = panel + j / 2 * a.steps * kPanelStep + j % 2 * 8;
      _mm256_storeu_ps(to, odd.v[j]);
      _mm256_storeu_ps(to + kTileOutputs, even.v[j]);
    }
  }
}

void mxfp4_product(const ProductArgs& a) {
  if (a.rows <= kMxfp4DirectRows) return for_rows<DirectMxfp4Product, kMxfp4DirectRows>(a.rows, a);
  Panels p{.panel = reinterpret_cast<float*>(a.scratch),
           .levels = reinterpret_cast<float*>(a.scratch) + 2 * a.steps * kPanelStep,
           .steps = a.steps,
           .y = a.y,
           .y_stride = a.y_stride};
  const auto* x = reinterpret_cast<const Operand*>(a.x);
  const RowTiles tiles(a.rows);
  const int large_rows = tiles.begin(tiles.larger);
  for (p.partial = 0; p.partial < kTilePartials; ++p.partial) {
    widen(a, p.partial, p.panel);
    if (tiles.larger) for_rows<PanelProduct>(tiles.rows + 1, p, 0, tiles.larger, x);
    for_rows<PanelProduct>(tiles.rows, p, large_rows, tiles.count - tiles.larger, x + large_rows * a.steps);
    x += a.rows * a.steps;
  }
}

#endif

}  // namespace

}  // namespace perigee::cpu::PERIGEE_ISA
