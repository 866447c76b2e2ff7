// The stages between blocks, a row at a time: AttnRes mixing, the norm, the lane tree.
#include "ops/cpu/fast/sequence_functions.h"
#include "ops/cpu/fast/simd_elementary.h"

namespace perigee::cpu::PERIGEE_ISA {

MixSums mix_sums(const bf16* source, const float* score, int hidden) {
  F32x16 squares = zero(), weighted = zero();
  for (int d = 0; d < hidden; d += 16) {
    const F32x16 x = load_bf16(source + d);
    squares = fma(x, x, squares);
    weighted = fma(x, load(score + d), weighted);
  }
  return {tree16(squares), tree16(weighted)};
}

void mix_and_norm(const MixSources& s, int hidden) {
  F32x16 squares = zero();
  for (int d = 0; d < hidden; d += 16) {
    F32x16 mix;
    if (s.count == 1) {
      mix = load_bf16(s.source[0] + d);
    } else {
      mix = zero();
      for (int j = 0; j < s.count; ++j) mix = fma(splat(s.weight[j]), load_bf16(s.source[j] + d), mix);
    }
    squares = fma(mix, mix, squares);
    store(s.mix + d, mix);
  }
  const float scale = 1.0f / __builtin_sqrtf(tree16(squares) / static_cast<float>(hidden) + s.eps);
  for (int d = 0; d < hidden; d += 16)
    store_bf16(s.out + d, mul(mul(load(s.mix + d), splat(scale)), load(s.norm + d)));
}

void sum_lanes(const LaneSum& s, int channels) {
  for (int d = 0; d < channels; d += 16) {
    F32x16 lane[kMaxLanes];
    for (int l = 0; l < s.lanes; ++l) lane[l] = load(s.partial + l * s.stride + d);
    for (int stride = s.lanes / 2; stride > 0; stride /= 2) {
      for (int l = 0; l < stride; ++l) lane[l] = add(lane[l], lane[l + stride]);
    }
    alignas(32) bf16 delta[16];
    store_bf16(delta, lane[0]);
    const F32x16 sum = load_bf16(delta);
    store_bf16(s.stream + d, s.restart ? sum : add(load_bf16(s.stream + d), sum));
  }
}

}  // namespace perigee::cpu::PERIGEE_ISA
