// embed, lane_reduce, lm_head: the stages every block shares (attn_res_mix has files of its own).
#include "ops/cuda/backend.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/products.h"

namespace perigee::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void embed_kernel(const bf16* table, const int32_t* tokens, const int32_t* drawn, bf16* out,
                             int hidden) {
  begin_in_turn();
  const int32_t given = tokens[blockIdx.x];
  const int32_t token = given < 0 ? drawn[row_of_drawn(given)] : given;
  const bf16* from = table + int64_t{token} * hidden;
  bf16* to = out + int64_t{blockIdx.x} * hidden;
  for (int d = threadIdx.x; d < hidden; d += kThreads) to[d] = from[d];
}

__global__ void lane_reduce_kernel(const float* partial, bf16* stream, bool restart, int lanes,
                                   int64_t count) {
  begin_in_turn();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const bf16 delta = float_to_bf16(reduce_lanes(partial + i, count, lanes));
  stream[i] = restart ? delta : float_to_bf16(bf16_to_float(stream[i]) + bf16_to_float(delta));
}

}  // namespace

void CudaBackend::embed(const EmbedArgs& a) {
  const int rows = static_cast<int>(a.tokens.size());
  if (rows == 0) return;
  launch_overlapping(embed_kernel, {.grid = dim3(rows), .threads = kThreads}, stream(), a.table,
                     tables_.tokens(a.tokens), drawn_.as<const int32_t>(), a.out, a.hidden);
}

void CudaBackend::lane_reduce(const LaneReduceArgs& a) {
  const int64_t count = int64_t{a.rows} * a.hidden;
  if (count == 0) return;
  const dim3 grid(static_cast<unsigned>((count + kThreads - 1) / kThreads));
  launch_overlapping(lane_reduce_kernel, {.grid = grid, .threads = kThreads}, stream(), a.partial, a.stream,
                     a.restart, a.lanes, count);
}

void CudaBackend::lm_head(const LmHeadArgs& a) {
  if (a.rows.empty()) return;
  multiply({.w = a.weight.weight,
            .w_stride = a.weight.in,
            .x = a.x,
            .x_stride = a.weight.in,
            .x_rows = tables_.logit_rows(a.rows),
            .y_fp32 = a.logits,
            .y_stride = a.weight.out,
            .rows = static_cast<int>(a.rows.size()),
            .outputs = a.weight.out,
            .k = a.weight.in},
           stream());
}

}  // namespace perigee::cuda
