// Convolution and chunk rows of KDA, one head at a time. All rows of a chunk go through a step together: the
// products with S read it once for four coefficient rows, and only T is made row after row.
#include "ops/cpu/fast/sequence_functions.h"
#include "ops/cpu/fast/simd_elementary.h"

namespace perigee::cpu::PERIGEE_ISA {

namespace {

constexpr int kHead = kKdaHead;
#ifdef PERIGEE_ISA_AVX512
constexpr int kColumns = 2;  // vectors of 16 columns that a product of four rows keeps in registers
#else
constexpr int kColumns = 1;
#endif

constexpr int kRowsAhead = 8;  // rows of S that are fetched before they are read

// out[r, x] = Σ_d coefficient[r, d] · S[d, x] for kRows rows and kVectors·16 columns: a chain over d from
// zero. The first columns of few rows fetch whole rows of S: otherwise each stretch of columns would wait for
// memory with strides that no hardware follows.
template <int kRows, int kVectors, bool kFetch = false>
PERIGEE_SIMD void product(const float* coefficient, const float* S, float* out) {
  F32x16 sum[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = zero();
  }
#pragma GCC unroll 1
  for (int d = 0; d < kHead; ++d) {
    if constexpr (kFetch) {
#pragma GCC unroll 8
      for (int x = 0; x < kHead; x += 16)
        _mm_prefetch(reinterpret_cast<const char*>(S + (d + kRowsAhead) * kHead + x), _MM_HINT_T0);
    }
    F32x16 s[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) s[v] = load(S + d * kHead + v * 16);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const F32x16 c = splat(coefficient[r * kHead + d]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(c, s[v], sum[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(out + r * kHead + v * 16, sum[r][v]);
  }
}

// `rows` is even: two coefficient rows a chunk row.
void products(const float* coefficient, int rows, const float* S, float* out) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) {
    for (int x = 0; x < kHead; x += 16 * kColumns)
      product<4, kColumns>(coefficient + r * kHead, S + x, out + r * kHead + x);
  }
  for (; r < rows; r += 2) {
    const float* c = coefficient + r * kHead;
    r == 0 ? product<2, 2, true>(c, S, out) : product<2, 2>(c, S, out + r * kHead);
    for (int x = 32; x < kHead; x += 32) product<2, 2>(c, S + x, out + r * kHead + x);
  }
}

// out[x] = first[x] + Σ_{j < count} coefficient[j] · rows[j, x], a chain over j; first may be null: zero.
void chain(const float* coefficient, int count, const float* rows, const float* first, float* out) {
  constexpr int kVectors = 4;
  for (int x = 0; x < kHead; x += 16 * kVectors) {
    F32x16 sum[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[v] = first ? load(first + x + v * 16) : zero();
#pragma GCC unroll 1
    for (int j = 0; j < count; ++j) {
      const F32x16 c = splat(coefficient[j]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[v] = fma(c, load(rows + j * kHead + x + v * 16), sum[v]);
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(out + x + v * 16, sum[v]);
  }
}

// A_ij without β and M_ij.
PERIGEE_SIMD void decayed_products(const KdaChunk& c, int i, int j, const float* q, float& A, float& M) {
  F32x16 a = zero(), m = zero();
#pragma GCC unroll 2
  for (int d = 0; d < kHead; d += 16) {
    const F32x16 decay = exp(sub(load(c.G[i] + d), load(c.G[j] + d))), k = load(c.k[j] + d);
    m = fma(mul(load(q + d), decay), k, m);
    a = fma(mul(load(c.k[i] + d), decay), k, a);
  }
  A = tree16(a);
  M = tree16(m);
}

// Row i of T from A_i and the rows before. Lane j's chain starts at l = j.
PERIGEE_SIMD void solve_row(KdaChunk& c, int i, const float* A) {
  alignas(64) constexpr float kLane[kChunk] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const F32x16 lane = load(kLane);
  F32x16 t = zero();
  for (int l = 0; l < i; ++l) {
    const Mask16 begun = less(lane, splat(static_cast<float>(l) + 0.5f));
    t = select(begun, fma(splat(A[l]), load(c.T[l]), t), t);
  }
  store(c.T[i], negate(t));
  c.T[i][i] = 1.0f;
  for (int j = i + 1; j < kChunk; ++j) c.T[i][j] = 0.0f;
}

PERIGEE_SIMD void widen(const bf16* in, float* out) {
  for (int d = 0; d < kHead; d += 16) store(out + d, load_bf16(in + d));
}

}  // namespace

void kda_convolve(const KdaConvolution& c) {
  alignas(64) float y[kHead];
  F32x16 squares = zero();
  for (int d = 0; d < kHead; d += 16) {
    F32x16 sum = zero();
    for (int tap = 0; tap < 4; ++tap) {
      if (c.in[tap]) sum = fma(load(c.taps + tap * kHead + d), load_bf16(c.in[tap] + d), sum);
    }
    const F32x16 x = silu(sum);
    squares = fma(x, x, squares);
    store(y + d, x);
  }
  const float scale = c.normalise ? 1.0f / __builtin_sqrtf(tree16(squares) + 1e-6f) * c.factor : 1.0f;
  for (int d = 0; d < kHead; d += 16) store_bf16(c.out + d, mul(load(y + d), splat(scale)));
}

void kda_rows(KdaChunk& c, const KdaRows& rows, const float* state) {
  alignas(64) float q[kHead], M[kChunk][kChunk];
  alignas(64) float coefficient[2 * kChunk * kHead];  // e^G ⊙ k and e^G ⊙ q of every new row
  alignas(64) float from_state[2 * kChunk * kHead];   // their products with S
  for (int i = rows.first; i < rows.end; ++i) {
    const int n = i - rows.first;
    const int64_t at = n * rows.stride;
    widen(rows.q + at, q);
    widen(rows.k + at, c.k[i]);
    for (int d = 0; d < kHead; d += 16) {
      const F32x16 g = load(rows.g + at + d);
      const F32x16 G = i == 0 ? g : add(load(c.G[i - 1] + d), g);
      store(c.G[i] + d, G);
      const F32x16 decay = exp(G);
      store(coefficient + 2 * n * kHead + d, mul(decay, load(c.k[i] + d)));
      store(coefficient + (2 * n + 1) * kHead + d, mul(decay, load(q + d)));
    }
    float A[kChunk];
    const float beta = rows.beta[n * rows.beta_stride];
    for (int j = 0; j <= i; ++j) {
      decayed_products(c, i, j, q, A[j], M[i][j]);
      A[j] *= beta;
    }
    solve_row(c, i, A);
  }

  const int count = rows.end - rows.first;
  products(coefficient, 2 * count, state, from_state);
  for (int n = 0; n < count; ++n) {
    const F32x16 beta = splat(rows.beta[n * rows.beta_stride]);
    for (int x = 0; x < kHead; x += 16) {
      const F32x16 v = load_bf16(rows.v + n * rows.stride + x);
      store(c.w[rows.first + n] + x, mul(beta, sub(v, load(from_state + 2 * n * kHead + x))));
    }
  }
  for (int i = 0; i < rows.end; ++i) chain(c.T[i], i + 1, c.w[0], nullptr, c.u[i]);
  for (int i = rows.first; i < rows.end; ++i) {
    const int n = i - rows.first;
    chain(M[i], i + 1, c.u[0], from_state + (2 * n + 1) * kHead, rows.out + n * rows.stride);
  }
}

void kda_commit(const KdaChunk& c, float* state) {
  alignas(64) float kd[kChunk][kHead], decay[kHead];
  const float* last = c.G[kChunk - 1];
  for (int d = 0; d < kHead; d += 16) {
    store(decay + d, exp(load(last + d)));
    for (int j = 0; j < kChunk; ++j)
      store(kd[j] + d, mul(exp(sub(load(last + d), load(c.G[j] + d))), load(c.k[j] + d)));
  }
  constexpr int kRows = 4;
  for (int d = 0; d < kHead; d += kRows) {
    for (int x = 0; x < kHead; x += 16 * kColumns) {
      F32x16 s[kRows][kColumns];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kColumns; ++v)
          s[r][v] = mul(splat(decay[d + r]), load(state + (d + r) * kHead + x + v * 16));
      }
#pragma GCC unroll 1
      for (int j = 0; j < kChunk; ++j) {
#pragma GCC unroll 4
        for (int v = 0; v < kColumns; ++v) {
          const F32x16 u = load(c.u[j] + x + v * 16);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) s[r][v] = fma(splat(kd[j][d + r]), u, s[r][v]);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kColumns; ++v) store(state + (d + r) * kHead + x + v * 16, s[r][v]);
      }
    }
  }
}

}  // namespace perigee::cpu::PERIGEE_ISA
