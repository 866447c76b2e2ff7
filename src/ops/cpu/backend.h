// The plain CPU backend: every stage as a newcomer would write it, and exactly the bits of the identity
// x86-bf16-v1. One file a block kind; ops/ops.h says what each stage computes and where it rounds.
#pragma once

#include "base/thread_pool.h"
#include "ops/ops.h"

namespace perigee::cpu {

class PlainBackend : public Backend {
 public:
  explicit PlainBackend(int threads) : pool_(threads) {}
  std::string architecture() const override { return "x86-bf16-v1"; }
  std::string kernels() const override { return "plain"; }

  void embed(const EmbedArgs&) override;
  void attn_res_mix(const AttnResMixArgs&) override;
  void lane_reduce(const LaneReduceArgs&) override;
  void lm_head(const LmHeadArgs&) override;
  void sample(const SampleArgs&) override;
  void kda_project(const KdaProjectArgs&) override;
  void kda_conv_norm_gate(const KdaConvArgs&) override;
  void kda_chunk(const KdaChunkArgs&) override;
  void kda_output(const KdaOutputArgs&) override;
  void mla_project(const MlaProjectArgs&) override;
  void index_front(const IndexFrontArgs&) override;
  void mla_query(const MlaQueryArgs&) override;
  void index_select(const IndexSelectArgs&) override;
  void sparse_attend(const AttendArgs&) override;
  void dense_attend(const AttendArgs&) override;
  void mla_output(const MlaOutputArgs&) override;
  void glu_mlp(const GluMlpArgs&) override;
  void moe_route(const MoeRouteArgs&) override;
  void moe_experts(const MoeExpertsArgs&) override;
  void moe_combine(const MoeCombineArgs&) override;

 protected:
  // The end of kda_chunk: the step's conv inputs go to the rings, and the slots' bases move on.
  static void keep_conv_inputs(const KdaChunkArgs&);
  // The parts of stages that follow a product, for a backend that has a product of its own.
  void quantise_index(const IndexFrontArgs&, const float* q);  // q [R, index heads, 128] fp32
  void write_latents(const MlaQueryArgs&);
  void choose_experts(const MoeRouteArgs&, const float* score);  // score [R, experts]

  // What `sample` keeps for the next `embed`.
  void keep_drawn_tokens(const SampleArgs&);

  ThreadPool pool_;

 private:
  std::vector<int32_t> drawn_;
};

}  // namespace perigee::cpu
