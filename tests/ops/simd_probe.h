// The vector functions of ops/cpu/fast, callable element by element from a test; one copy an instruction set.
#pragma once

#include <cstdint>

#include "formats/bf16.h"

namespace perigee::cpu {

struct SimdProbe {
  using Unary = void (*)(const float* x, float* y);  // sixteen lanes
  Unary exp, log, sigmoid, silu, softplus, tanh, rsqrt;
  void (*to_bf16)(const float* x, bf16* y);
  float (*tree)(const float* x);
  void (*pair_fma)(const bf16* a, const bf16* b, float* acc);  // 32 elements, 16 sums
};

namespace avx2 {
extern const SimdProbe simd_probe;
}
namespace avx512 {
extern const SimdProbe simd_probe;
}
namespace avx512_emulated {
extern const SimdProbe simd_probe;
}

}  // namespace perigee::cpu
