#include "ops/cpu/fast/matrix_kernels.h"

#include <cstring>

#include "ops/cpu/fast/mxfp4_kernel.h"
#include "ops/cpu/fast/product_kernel.h"
#include "ops/cpu/fast/simd_elementary.h"

namespace perigee::cpu::PERIGEE_ISA {

namespace {

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
    .operand_bytes = sizeof(Operand),
    .spread = spread,
    .scratch_bytes = scratch_bytes,
    .product = product,
    .mxfp4_scales = mxfp4_scales,
    .mxfp4_product = mxfp4_product,
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
