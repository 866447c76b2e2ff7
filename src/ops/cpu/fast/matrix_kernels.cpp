#include "ops/cpu/fast/matrix_kernels.h"

#include <cstring>

#include "ops/cpu/fast/simd_elementary.h"

namespace perigee::cpu::PERIGEE_ISA {

namespace {

// One pair of x, as `product` broadcasts it.
#ifdef PERIGEE_ISA_AVX512
constexpr int kRows = 12;
struct Operand {
  uint32_t pair;
};
PERIGEE_SIMD Operand operand(uint32_t pair) { return {pair}; }
#else
constexpr int kRows = 6;
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

// Partials in flight for R rows: enough independent chains to hide the latency of a fused multiply-add, few
// enough accumulators for the registers.
template <int R>
constexpr int kChains =
#ifdef PERIGEE_ISA_AVX512
    R <= 4 ? 4 : 2;
#else
    R == 1   ? 4
    : R <= 3 ? 2
             : 1;
#endif

constexpr int64_t kAhead = 2048;  // bytes by which tiles are prefetched

template <int R>
void spread_rows(const bf16* const* x, int k, Operand* out) {
  constexpr int P = kChains<R>;
  const int64_t steps = k_blocks(k);
  for (int group = 0; group < kTilePartials; group += P) {
    for (int64_t step = 0; step < steps; ++step) {
      for (int p = 0; p < P; ++p) {
        const int64_t column = step * 32 + 2 * kPartialOrder[group + p];
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
  }
}

// The fixed tree over the partials of 16 outputs; partials are R · width floats apart.
template <int R, int width>
PERIGEE_SIMD F32x16 tree_of_partials(const float* first) {
  F32x16 t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    t[i] = add(load(first + 2 * i * R * width), load(first + (2 * i + 1) * R * width));
  const F32x16 low = add(add(t[0], t[1]), add(t[2], t[3])), high = add(add(t[4], t[5]), add(t[6], t[7]));
  return add(low, high);
}

template <int R>
void product_rows(const ProductArgs& a) {
  constexpr int P = kChains<R>;
  alignas(64) float sum[kTilePartials][R][16];
  const auto* x = reinterpret_cast<const Operand*>(a.x);
  for (int group = 0; group < kTilePartials; group += P) {
    const std::byte* w = a.tiles + group / 4 * a.quad_bytes + group % 4 * kTilePairs;
    const std::byte* ahead = w + kAhead;
    F32x16 acc[P][R];
#pragma GCC unroll 16
    for (int i = 0; i < P * R; ++i) acc[i / R][i % R] = zero();
    for (int64_t step = 0; step < a.steps; ++step) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        _mm_prefetch(reinterpret_cast<const char*>(ahead + p * kTilePairs), _MM_HINT_T0);
#ifdef PERIGEE_ISA_AVX512
        const I32x16 pairs = load_bits(w + p * kTilePairs);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) acc[p][r] = pair_fma(splat_bits(x[p * R + r].pair), pairs, acc[p][r]);
#else
        const F32x16 odd = odd_of(load_bits(w + p * kTilePairs));
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) acc[p][r] = fma(splat(x[p * R + r].odd), odd, acc[p][r]);
        const F32x16 even = even_of(load_bits(w + p * kTilePairs));
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) acc[p][r] = fma(splat(x[p * R + r].even), even, acc[p][r]);
#endif
      }
      x += P * R;
      w += kTileStep;
      ahead += kTileStep;
    }
#pragma GCC unroll 16
    for (int i = 0; i < P * R; ++i) store(sum[group + i / R][i % R], acc[i / R][i % R]);
  }
  for (int r = 0; r < R; ++r) store(a.y + r * a.y_stride, tree_of_partials<R, kTileOutputs>(sum[0][r]));
}

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

// Rounding to bf16 cuts off zeros alone: e2m1 has two significant bits.
void mxfp4_expand(const Mxfp4ExpandArgs& a) {
  const int64_t block = 4 * a.steps * kTileStep;
  for (int quad = 0; quad < 4; ++quad) {
    const std::byte* w = a.tiles + quad * a.quad_bytes;
    std::byte* out = a.out + quad * a.steps * kTileStep;
    for (int64_t step = 0; step < a.steps; ++step) {
      for (int p = 0; p < 4; ++p, w += kMxfp4Outputs, out += kTilePairs) {
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
  }
}

#ifndef PERIGEE_ISA_AVX512
constexpr int kMxfp4Rows = 3;

template <int R>
void mxfp4_product_rows(const Mxfp4ProductArgs& a) {
  constexpr int P = kChains<R>;
  alignas(64) float sum[kTilePartials][R][kMxfp4Outputs];
  const auto* x = reinterpret_cast<const Operand*>(a.x);
  for (int group = 0; group < kTilePartials; group += P) {
    for (int chain = 0; chain < P; ++chain) {
      const int partial = group + chain;
      const std::byte* w = a.tiles + partial / 4 * a.quad_bytes + partial % 4 * kMxfp4Outputs;
      const Operand* at = x + chain * R;
      __m256 acc[R][4];
#pragma GCC unroll 12
      for (int i = 0; i < 4 * R; ++i) acc[i / 4][i % 4] = _mm256_setzero_ps();
      for (int64_t step = 0; step < a.steps; ++step, w += kMxfp4Step, at += P * R) {
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
    x += P * R * a.steps;
  }
  for (int r = 0; r < R; ++r) {
    for (int half = 0; half < kMxfp4Outputs; half += kTileOutputs) {
      store(a.y + r * a.y_stride + half, tree_of_partials<R, kMxfp4Outputs>(&sum[0][r][half]));
    }
  }
}
#endif

// Calls f<R> for the R given at run time.
template <template <int> class F, int R = kRows, typename... Args>
PERIGEE_SIMD void for_rows(int rows, Args&&... args) {
  if (rows == R) {
    F<R>::call(args...);
  } else if constexpr (R > 1) {
    for_rows<F, R - 1>(rows, args...);
  }
}
template <int R>
struct Spread {
  static void call(const bf16* const* x, int k, Operand* out) { spread_rows<R>(x, k, out); }
};
template <int R>
struct ProductOf {
  static void call(const ProductArgs& a) { product_rows<R>(a); }
};
#ifdef PERIGEE_ISA_AVX512
constexpr int kMxfp4Rows = 0;
void mxfp4_product(const Mxfp4ProductArgs&) {}
#else
template <int R>
struct Mxfp4ProductOf {
  static void call(const Mxfp4ProductArgs& a) { mxfp4_product_rows<R>(a); }
};
void mxfp4_product(const Mxfp4ProductArgs& a) { for_rows<Mxfp4ProductOf, kMxfp4Rows>(a.rows, a); }
#endif

void spread(const bf16* const* x, int rows, int k, std::byte* out) {
  for_rows<Spread>(rows, x, k, reinterpret_cast<Operand*>(out));
}
void product(const ProductArgs& a) { for_rows<ProductOf>(a.rows, a); }

// Sixteen values at a time of arrays of any length: the last ones through a padded copy.
PERIGEE_SIMD F32x16 load_some(const float* p, int count) {
  if (count >= 16) return load(p);
  alignas(64) float padded[16] = {};
  std::memcpy(padded, p, count * sizeof(float));
  return load(padded);
}
PERIGEE_SIMD F32x16 load_some(const bf16* p, int count) {
  if (count >= 16) return load_bf16(p);
  alignas(64) bf16 padded[16] = {};
  std::memcpy(padded, p, count * sizeof(bf16));
  return load_bf16(padded);
}
PERIGEE_SIMD void store_some(float* p, F32x16 x, int count) {
  if (count >= 16) return store(p, x);
  alignas(64) float padded[16];
  store(padded, x);
  std::memcpy(p, padded, count * sizeof(float));
}
PERIGEE_SIMD void store_some(bf16* p, F32x16 x, int count) {
  if (count >= 16) return store_bf16(p, x);
  alignas(64) bf16 padded[16];
  store_bf16(padded, x);
  std::memcpy(p, padded, count * sizeof(bf16));
}

// Rounded to bf16 and widened again.
PERIGEE_SIMD F32x16 rounded(F32x16 x) {
  alignas(64) bf16 half[16];
  store_bf16(half, x);
  return load_bf16(half);
}

void round(const float* y, int n, bf16* out) {
  for (int i = 0; i < n; i += 16) store_some(out + i, load_some(y + i, n - i), n - i);
}

void widen(const bf16* x, int n, float* out) {
  for (int i = 0; i < n; i += 16) store_some(out + i, load_some(x + i, n - i), n - i);
}

void sigmoid_of(const float* y, int n, float* out) {
  for (int i = 0; i < n; i += 16) store_some(out + i, sigmoid(load_some(y + i, n - i)), n - i);
}

void decay(const DecayArgs& a, int n) {
  const F32x16 rate = splat(a.rate);
  for (int i = 0; i < n; i += 16) {
    const F32x16 u = add(load_some(a.y + i, n - i), load_some(a.dt_bias + i, n - i));
    const F32x16 g =
        a.bounded ? mul(splat(a.bound), sigmoid(mul(rate, u))) : mul(splat(-a.rate), softplus(u));
    store_some(a.g + i, g, n - i);
  }
}

void activate(const ActivationArgs& a, int n) {
  for (int i = 0; i < n; i += 16) {
    const F32x16 gate = load_some(a.gate + i, n - i);
    F32x16 up = load_some(a.up + i, n - i), y;
    if (a.situ) {
      y = mul(mul(splat(a.beta), tanh(div(gate, splat(a.beta)))), sigmoid(gate));
      if (a.linear_beta > 0.0f) up = mul(splat(a.linear_beta), tanh(div(up, splat(a.linear_beta))));
    } else {
      y = silu(gate);
    }
    store_some(a.out + i, mul(y, up), n - i);
  }
}

void gate_of(const float* y, const bf16* gate, int n, bf16* out) {
  for (int i = 0; i < n; i += 16) {
    store_some(out + i, mul(load_some(y + i, n - i), sigmoid(load_some(gate + i, n - i))), n - i);
  }
}

void tree_of(const LaneArgs& a, int n, float* out) {
  for (int i = 0; i < n; i += 16) {
    F32x16 lane[32];  // kMaxLanes
    for (int l = 0; l < a.lanes; ++l) lane[l] = load_some(a.first + l * a.stride + i, n - i);
    for (int stride = a.lanes / 2; stride > 0; stride /= 2) {
      for (int l = 0; l < stride; ++l) lane[l] = add(lane[l], lane[l + stride]);
    }
    store_some(out + i, lane[0], n - i);
  }
}

void add_residual(const float* routed, const float* shared, int n, bf16* stream) {
  for (int i = 0; i < n; i += 16) {
    const F32x16 other = shared ? load_some(shared + i, n - i) : zero();
    const F32x16 delta = rounded(add(load_some(routed + i, n - i), other));
    store_some(stream + i, add(load_some(stream + i, n - i), delta), n - i);
  }
}

void add_scaled(const bf16* x, float weight, int n, float* y) {
  const F32x16 w = splat(weight);
  for (int i = 0; i < n; i += 16) {
    store_some(y + i, fma(w, load_some(x + i, n - i), load_some(y + i, n - i)), n - i);
  }
}

// rsqrt(mean of squares + eps)
PERIGEE_SIMD F32x16 rms_scale(const float* x, float eps, int n) {
  F32x16 squares = zero();
  for (int i = 0; i < n; i += 16) squares = fma(load(x + i), load(x + i), squares);
  return rsqrt(splat(tree16(squares) / static_cast<float>(n) + eps));
}

void rms(const float* x, const float* weight, float eps, int n, bf16* out) {
  const F32x16 scale = rms_scale(x, eps, n);
  for (int i = 0; i < n; i += 16) store_bf16(out + i, mul(mul(load(x + i), scale), load(weight + i)));
}

void gated_rms(const float* o, const float* norm, const bf16* gate, float eps, int n, bf16* out) {
  const F32x16 scale = rms_scale(o, eps, n);
  for (int i = 0; i < n; i += 16) {
    const F32x16 normed = mul(mul(load(o + i), scale), load(norm + i));
    store_bf16(out + i, mul(normed, sigmoid(load_bf16(gate + i))));
  }
}

}  // namespace

const MatrixKernels matrix_kernels{
    .rows = kRows,
    .operand_bytes = sizeof(Operand),
    .spread = spread,
    .product = product,
    .mxfp4_rows = kMxfp4Rows,
    .mxfp4_scales = mxfp4_scales,
    .mxfp4_product = mxfp4_product,
    .mxfp4_expand = mxfp4_expand,
    .round = round,
    .widen = widen,
    .sigmoid = sigmoid_of,
    .decay = decay,
    .activate = activate,
    .gate = gate_of,
    .tree = tree_of,
    .add_residual = add_residual,
    .add_scaled = add_scaled,
    .rms = rms,
    .gated_rms = gated_rms,
};

}  // namespace perigee::cpu::PERIGEE_ISA
