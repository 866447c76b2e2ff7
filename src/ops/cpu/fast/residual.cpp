// attn_res_mix and lane_reduce: bound by memory, so a row is read as few times as its sums allow.
#include <algorithm>

#include "ops/cpu/fast/backend.h"
#include "ops/cpu/fast/scratch.h"
#include "ops/cpu/fast/sequence_kernels.h"
#include "ops/elementary.h"

namespace perigee::cpu {

void FastBackend::attn_res_mix(const AttnResMixArgs& a) {
  const SequenceKernels& kernels = *kernels_.sequence;
  const int sources = static_cast<int>(a.banks.size()) + 1;
  pool_.run(a.rows, [&](int64_t r) {
    Arena& arena = thread_arena();
    const Arena::Scope scope(arena);
    auto* source = arena.take<const bf16*>(sources);
    auto* p = arena.take<float>(sources);
    for (int j = 0; j < sources; ++j) source[j] = (j + 1 < sources ? a.banks[j] : a.stream) + r * a.hidden;
    if (sources > 1) {
      for (int j = 0; j < sources; ++j) {
        const MixSums sums = kernels.mix_sums(source[j], a.score, a.hidden);
        p[j] = rsqrt(sums.squares / a.hidden + a.eps) * sums.weighted;
      }
      const float top = *std::max_element(p, p + sources);
      float total = 0.0f;
      for (int j = 0; j < sources; ++j) total += p[j] = exp(p[j] - top);
      for (int j = 0; j < sources; ++j) p[j] /= total;
    }
    kernels.mix_and_norm({.source = source,
                          .weight = p,
                          .count = sources,
                          .norm = a.norm,
                          .eps = a.eps,
                          .mix = arena.take<float>(a.hidden),
                          .out = a.out + r * a.hidden},
                         a.hidden);
  });
}

void FastBackend::lane_reduce(const LaneReduceArgs& a) {
  if (rule_broken(Rule::kLane) || a.hidden % 16 != 0) return PlainBackend::lane_reduce(a);
  pool_.run(a.rows, [&](int64_t r) {
    kernels_.sequence->sum_lanes({.partial = a.partial + r * a.hidden,
                                  .stride = int64_t{a.rows} * a.hidden,
                                  .lanes = a.lanes,
                                  .restart = a.restart,
                                  .stream = a.stream + r * a.hidden},
                                 a.hidden);
  });
}

}  // namespace perigee::cpu
