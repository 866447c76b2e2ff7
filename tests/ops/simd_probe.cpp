#include "ops/simd_probe.h"

#include "ops/cpu/fast/simd_elementary.h"

namespace perigee::cpu::PERIGEE_ISA {

const SimdProbe simd_probe{
    .exp = [](const float* x, float* y) { store(y, exp(load(x))); },
    .log = [](const float* x, float* y) { store(y, log(load(x))); },
    .sigmoid = [](const float* x, float* y) { store(y, sigmoid(load(x))); },
    .silu = [](const float* x, float* y) { store(y, silu(load(x))); },
    .softplus = [](const float* x, float* y) { store(y, softplus(load(x))); },
    .tanh = [](const float* x, float* y) { store(y, tanh(load(x))); },
    .rsqrt = [](const float* x, float* y) { store(y, rsqrt(load(x))); },
    .to_bf16 = [](const float* x, bf16* y) { store_bf16(y, load(x)); },
    .tree = [](const float* x) { return tree16(load(x)); },
    .pair_fma = [](const bf16* a, const bf16* b,
                   float* acc) { store(acc, pair_fma(load_pairs(a), load_pairs(b), load(acc))); },
};

}  // namespace perigee::cpu::PERIGEE_ISA
