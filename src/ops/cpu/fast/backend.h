// The fast CPU backend: PlainBackend with the stages overridden whose speed matters, each with the same bits.
// A stage that is not overridden here runs plainly.
#pragma once

#include "ops/cpu/backend.h"
#include "ops/cpu/fast/kernels.h"

namespace perigee::cpu {

class FastBackend final : public PlainBackend {
 public:
  FastBackend(int threads, const Kernels& kernels) : PlainBackend(threads), kernels_(kernels) {}
  std::string kernels() const override { return kernels_.name; }

  void attn_res_mix(const AttnResMixArgs&) override;
  void lane_reduce(const LaneReduceArgs&) override;
  void sample(const SampleArgs&) override;
  void kda_conv_norm_gate(const KdaConvArgs&) override;
  void kda_chunk(const KdaChunkArgs&) override;
  void index_select(const IndexSelectArgs&) override;
  void sparse_attend(const AttendArgs&) override;
  void dense_attend(const AttendArgs&) override;

 private:
  const Kernels& kernels_;
};

// Names of the stages that FastBackend overrides, in the order of ops.h.
std::vector<std::string> fast_stages();

}  // namespace perigee::cpu
