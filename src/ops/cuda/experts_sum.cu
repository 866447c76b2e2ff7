#include "ops/cuda/cuda_check.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/overlap.cuh"

namespace perigee::cuda {
namespace {

struct SumParams {
  const bf16* down;  // [entries, column lanes, in]
  const int32_t* experts;
  const float* weight;
  float* partial;  // [lanes, R, in]
  int rows, choices, in, column_lanes;
  int experts_per_lane;  // lanes are blocks of expert ids; 0: of columns
  unsigned parts;        // blocks a row: all along x, which alone may have more than 65,535
};

// partial = Σ weight · down in ascending expert id, eight outputs a thread.
__global__ void sum_kernel(const SumParams p) {
  begin_in_turn();
  const int row = static_cast<int>(blockIdx.x / p.parts), lane = blockIdx.y;
  const int d = static_cast<int>(blockIdx.x % p.parts * blockDim.x + threadIdx.x) * 8;
  if (d >= p.in) return;
  float y[8] = {};
  for (int i = 0; i < p.choices; ++i) {
    const int64_t entry = int64_t{row} * p.choices + i;
    if (p.experts_per_lane && p.experts[entry] / p.experts_per_lane != lane) continue;
    const int64_t at = (entry * p.column_lanes + (p.experts_per_lane ? 0 : lane)) * p.in + d;
    const uint4 v = *reinterpret_cast<const uint4*>(p.down + at);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 8; ++j)
      y[j] = __fmaf_rn(p.weight[entry], bf16_to_float(static_cast<bf16>(words[j / 2] >> j % 2 * 16)), y[j]);
  }
  float4* to = reinterpret_cast<float4*>(p.partial + (int64_t{lane} * p.rows + row) * p.in + d);
  to[0] = make_float4(y[0], y[1], y[2], y[3]);
  to[1] = make_float4(y[4], y[5], y[6], y[7]);
}

}  // namespace

void sum_experts(const MoeExpertsArgs& a, const bf16* down, cudaStream_t stream) {
  constexpr int kThreads = 128, kOutputsOfBlock = kThreads * 8;
  const unsigned parts = static_cast<unsigned>((a.in + kOutputsOfBlock - 1) / kOutputsOfBlock);
  const SumParams p{.down = down,
                    .experts = a.experts,
                    .weight = a.expert_weight,
                    .partial = a.partial,
                    .rows = a.rows,
                    .choices = a.config.experts_per_token,
                    .in = a.in,
                    .column_lanes = a.lanes_expert ? 1 : a.lanes,
                    .experts_per_lane = a.lanes_expert ? a.config.num_experts / a.lanes : 0,
                    .parts = parts};
  const dim3 grid(parts * static_cast<unsigned>(a.rows), a.lanes);
  launch_overlapping(sum_kernel, {.grid = grid, .threads = kThreads}, stream, p);
}

}  // namespace perigee::cuda
