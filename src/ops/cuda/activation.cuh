// The gated activations of ops.h (ActivationParams), fp32.
#pragma once

#include "ops/elementary.h"
#include "ops/ops.h"

namespace perigee::cuda {

__device__ inline float activate(const ActivationParams& p, float gate, float up) {
  if (p.kind == Activation::kSilu) return silu(gate) * up;
  const float inverse = 1.0f / p.beta, linear_inverse = 1.0f / p.linear_beta;  // the same for all values
  const float clipped_gate = p.beta * tanh(gate * inverse) * sigmoid(gate);
  return clipped_gate * (p.linear_beta > 0.0f ? p.linear_beta * tanh(up * linear_inverse) : up);
}

__device__ inline float4 activate(const ActivationParams& p, const float4& gate, const float4& up) {
  return {activate(p, gate.x, up.x), activate(p, gate.y, up.y), activate(p, gate.z, up.z),
          activate(p, gate.w, up.w)};
}

}  // namespace perigee::cuda
