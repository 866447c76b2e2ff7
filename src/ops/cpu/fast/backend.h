// The fast CPU backend: PlainBackend with the stages overridden whose speed matters, each with the same bits.
// A stage that is not overridden here runs plainly, and so does a matrix stage whose weights have no tiles.
#pragma once

#include "base/arena.h"
#include "ops/cpu/backend.h"
#include "ops/cpu/fast/kernels.h"
#include "ops/cpu/fast/products.h"

namespace perigee::cpu {

class FastBackend final : public PlainBackend {
 public:
  FastBackend(int threads, const Kernels& kernels)
      : PlainBackend(threads), kernels_(kernels), products_(*kernels.matrix, pool_, arena_) {}
  std::string kernels() const override { return kernels_.name; }

  // attend.cpp, kda.cpp, residual.cpp, sample.cpp, select.cpp
  void attn_res_mix(const AttnResMixArgs&) override;
  void lane_reduce(const LaneReduceArgs&) override;
  void sample(const SampleArgs&) override;
  void kda_conv_norm_gate(const KdaConvArgs&) override;
  void kda_chunk(const KdaChunkArgs&) override;
  void index_select(const IndexSelectArgs&) override;
  void sparse_attend(const AttendArgs&) override;
  void dense_attend(const AttendArgs&) override;

  // tile_weights.cpp
  int64_t tile_bytes(const Linear&, int segments) const override;
  int64_t tile_bytes(const Mxfp4Linear&, int segments) const override;
  void tile(const Linear&, int segments, std::byte* out) override;
  void tile(const Mxfp4Linear&, int segments, std::byte* out) override;
  std::string tile_layout() const override;

  // projections.cpp
  void lm_head(const LmHeadArgs&) override;
  void kda_project(const KdaProjectArgs&) override;
  void kda_output(const KdaOutputArgs&) override;
  void mla_project(const MlaProjectArgs&) override;
  void index_front(const IndexFrontArgs&) override;
  void mla_query(const MlaQueryArgs&) override;
  void mla_output(const MlaOutputArgs&) override;

  // mlp.cpp
  void glu_mlp(const GluMlpArgs&) override;
  void moe_route(const MoeRouteArgs&) override;
  void moe_experts(const MoeExpertsArgs&) override;
  void moe_combine(const MoeCombineArgs&) override;

 private:
  // All of W times x; the sink sees outputs 0 … w.out − 1.
  Product product(const Linear& w, const SpreadRows& x, Sink sink) const;
  Product to_bf16(const Linear& w, const SpreadRows& x, bf16* out, int64_t stride) const;
  Product to_fp32(const Linear& w, const SpreadRows& x, float* out, int64_t stride) const;
  void run_one(const Product& p) { products_.run({&p, 1}); }
  // partial[lane, row, out] over the lane's block of columns of y[rows, w.in].
  void lane_products(const Linear& w, const bf16* y, int rows, int lanes, float* partial);

  const Kernels& kernels_;
  Arena arena_;  // of a stage
  Products products_;
};

// Names of the stages that FastBackend overrides, in the order of ops.h.
std::vector<std::string> fast_stages();

}  // namespace perigee::cpu
