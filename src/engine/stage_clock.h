// StageClock: a backend that passes every stage on to another one and keeps how long it took, beside what it
// has to read and compute at least. For a backend on the host, whose stages are done when they return.
#pragma once

#include <string>
#include <vector>

#include "model/step_cost.h"
#include "ops/ops.h"

namespace perigee {

struct StageTime {
  std::string name;
  int64_t calls = 0;
  double seconds = 0;
  Cost cost;  // of all calls
};

// In the order in which the stages were first called.
using StageTimes = std::vector<StageTime>;

class StageClock final : public Backend {
 public:
  // Both outlive it.
  StageClock(Backend& backend, StageTimes& times) : backend_(backend), times_(times) {}

  Memory& memory() override { return backend_.memory(); }
  bool begin_step(const StepInputs& inputs) override { return backend_.begin_step(inputs); }
  void end_step() override { backend_.end_step(); }
  std::string architecture() const override { return backend_.architecture(); }
  std::string kernels() const override { return backend_.kernels(); }

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

 private:
  template <typename Args>
  void time(const char* name, const Args& args, void (Backend::*stage)(const Args&), const Cost& cost);

  Backend& backend_;
  StageTimes& times_;
};

}  // namespace perigee
