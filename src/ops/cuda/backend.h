// The CUDA backend: every stage of ops/ops.h on one GPU, sm_80 or newer, in the order of one stream; no stage
// waits. Pointers inside stage arguments are to device memory (or to page-locked host memory); spans are
// those that begin_step was given. One file a block kind.
#pragma once

#include "base/arena.h"
#include "ops/cuda/step_recorder.h"
#include "ops/cuda/step_tables.h"
#include "ops/ops.h"

namespace perigee::cuda {

class CudaBackend final : public Backend {
 public:
  // Throws Error{kUnsupported} when there is no device, or one older than sm_80.
  // `graphs`: steps of a shape that was seen before are recorded as CUDA graphs and replayed.
  explicit CudaBackend(bool graphs = true);
  std::string architecture() const override { return architecture_; }
  std::string kernels() const override { return "cuda"; }
  DeviceMemory& memory() override { return memory_; }
  bool begin_step(const StepInputs& inputs) override;
  void end_step() override;

  // residual.cu, sample.cu
  void embed(const EmbedArgs&) override;
  void attn_res_mix(const AttnResMixArgs&) override;
  void lane_reduce(const LaneReduceArgs&) override;
  void lm_head(const LmHeadArgs&) override;
  void sample(const SampleArgs&) override;
  // kda.cu, kda_chunk.cu
  void kda_project(const KdaProjectArgs&) override;
  void kda_conv_norm_gate(const KdaConvArgs&) override;
  void kda_chunk(const KdaChunkArgs&) override;
  void kda_output(const KdaOutputArgs&) override;
  // mla.cu, index_front.cu, index_select.cu, attend.cu
  void mla_project(const MlaProjectArgs&) override;
  void index_front(const IndexFrontArgs&) override;
  void mla_query(const MlaQueryArgs&) override;
  void index_select(const IndexSelectArgs&) override;
  void sparse_attend(const AttendArgs&) override;
  void dense_attend(const AttendArgs&) override;
  void mla_output(const MlaOutputArgs&) override;
  // mlp.cu, experts.cu
  void glu_mlp(const GluMlpArgs&) override;
  void moe_route(const MoeRouteArgs&) override;
  void moe_experts(const MoeExpertsArgs&) override;
  void moe_combine(const MoeCombineArgs&) override;

 private:
  cudaStream_t stream() const { return recorder_.recording() ? recorder_.stream() : memory_.stream(); }

  std::string architecture_;
  DeviceMemory memory_;
  StepTables tables_;
  Arena scratch_;      // of a stage, on the device
  MemoryBlock drawn_;  // [rows] tokens of the last `sample`
  StepRecorder recorder_;
};

}  // namespace perigee::cuda
