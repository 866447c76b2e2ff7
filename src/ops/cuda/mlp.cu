// glu_mlp, moe_route, moe_combine (moe_experts has a file of its own).
#include "ops/cuda/backend.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/products.h"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/require.h"
#include "ops/elementary.h"

namespace perigee::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kOwn = 8;  // experts of a thread of route_kernel, at most

unsigned blocks(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

// One block a row. A candidate is ordered by (choice descending, id ascending) as one integer: the larger
// wins. NaN counts as −∞.
struct RouteParams {
  const float* logit;  // [R, experts]
  const float* bias;   // [experts]
  int32_t* experts;    // [R, k]
  float* weight;       // [R, k]
  int count, k;
  bool renormalize;
  float scale;
};

__device__ uint64_t candidate(float choice, int id) {
  if (choice != choice) choice = -__uint_as_float(0x7F800000u);
  choice += 0.0f;  // −0 is +0
  const uint32_t bits = __float_as_uint(choice);
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(id));
}

__global__ void __launch_bounds__(kThreads) route_kernel(const RouteParams p) {
  extern __shared__ float score[];  // [experts]
  __shared__ uint64_t best_of_warp[2][kThreads / kWarp];
  __shared__ int picked[kThreads], ascending[kThreads];
  const int64_t row = blockIdx.x;
  begin_in_turn();
  uint64_t own[kOwn];  // candidates of this thread; 0: taken, or none
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int e = i * kThreads + static_cast<int>(threadIdx.x);
    own[i] = 0;
    if (e >= p.count) continue;
    score[e] = sigmoid(p.logit[row * p.count + e]);
    own[i] = candidate(score[e] + p.bias[e], e);
  }
  for (int i = 0; i < p.k; ++i) {
    uint64_t mine = own[0];
#pragma unroll
    for (int j = 1; j < kOwn; ++j) mine = max(mine, own[j]);
    uint64_t best = mine;
    for (int stride = kWarp / 2; stride > 0; stride /= 2)
      best = max(best, __shfl_xor_sync(kAllLanes, best, stride));
    if (threadIdx.x % kWarp == 0) best_of_warp[i % 2][threadIdx.x / kWarp] = best;
    __syncthreads();
    best = best_of_warp[i % 2][0];
#pragma unroll
    for (int w = 1; w < kThreads / kWarp; ++w) best = max(best, best_of_warp[i % 2][w]);
    if (mine != best) continue;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) own[j] = own[j] == best ? 0 : own[j];
    picked[i] = static_cast<int>(0xFFFFFFFFu - static_cast<uint32_t>(best));
  }
  __syncthreads();
  const int i = threadIdx.x;
  if (i < p.k) {
    int before = 0;
    for (int j = 0; j < p.k; ++j) before += picked[j] < picked[i];
    ascending[before] = picked[i];
  }
  __syncthreads();
  if (i >= p.k) return;
  float total = 0.0f;
  for (int j = 0; j < p.k; ++j) total += score[ascending[j]];
  const int expert = ascending[i];
  p.experts[row * p.k + i] = expert;
  p.weight[row * p.k + i] = (p.renormalize ? score[expert] / (total + 1e-20f) : score[expert]) * p.scale;
}

// One block a row: y = rms(lane tree of routed; norm) → bf16, or the tree itself without a norm.
__global__ void __launch_bounds__(kThreads) latent_kernel(const float* routed, const float* norm, float eps,
                                                          bf16* y, int rows, int width, int lanes) {
  __shared__ float of_warp[kThreads / kWarp];
  begin_in_turn();
  const int64_t row = int64_t{blockIdx.x} * width, stride = int64_t{rows} * width;
  float squares = 0.0f;
  if (norm) {
    for (int d = threadIdx.x; d < width; d += kThreads) {
      const float v = reduce_lanes(routed + row + d, stride, lanes);
      squares = __fmaf_rn(v, v, squares);
    }
    squares = block_sum(squares, of_warp);
  }
  const float scale = norm ? rsqrt(squares / static_cast<float>(width) + eps) : 1.0f;
  for (int d = threadIdx.x; d < width; d += kThreads) {
    const float v = reduce_lanes(routed + row + d, stride, lanes);
    y[row + d] = float_to_bf16(norm ? v * scale * norm[d] : v);
  }
}

// stream += (routed + lane tree of shared) → bf16. `routed` is of one lane when it is already a sum.
__global__ void combine_kernel(const float* routed, int routed_lanes, const float* shared, int shared_lanes,
                               bf16* stream, int64_t count) {
  begin_in_turn();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const float r = reduce_lanes(routed + i, count, routed_lanes);
  const float s = shared ? reduce_lanes(shared + i, count, shared_lanes) : 0.0f;
  const bf16 delta = float_to_bf16(r + s);
  stream[i] = float_to_bf16(bf16_to_float(stream[i]) + bf16_to_float(delta));
}

}  // namespace

void CudaBackend::glu_mlp(const GluMlpArgs& a) {
  const Arena::Scope scope(scratch_);
  bf16* act = scratch_.take<bf16>(int64_t{a.rows} * a.weights.gate.out);
  multiply_glu(a.weights.gate, a.weights.up, a.activation, a.x, a.rows, act, stream());
  multiply_lanes(a.weights.down, act, a.rows, a.lanes, a.partial, stream());
}

void CudaBackend::moe_route(const MoeRouteArgs& a) {
  const Arena::Scope scope(scratch_);
  const int experts = a.config.num_experts;
  require(experts <= kOwn * kThreads, "moe_route: num_experts", experts, "at most 2,048");
  require(a.config.experts_per_token <= kThreads, "moe_route: num_experts_per_token",
          a.config.experts_per_token, "at most 256");
  float* logit = scratch_.take<float>(int64_t{a.rows} * experts);
  std::vector<Product> products{product(a.weights.router, a.x, a.rows, logit)};
  if (a.config.latent_size) products.push_back(product(a.weights.latent_down, a.x, a.rows, a.z));
  multiply_all(products, stream());
  const RouteParams p{.logit = logit,
                      .bias = a.weights.router_bias,
                      .experts = a.experts,
                      .weight = a.expert_weight,
                      .count = experts,
                      .k = a.config.experts_per_token,
                      .renormalize = a.config.renormalize,
                      .scale = a.config.routed_scaling_factor};
  launch_overlapping(
      route_kernel,
      {.grid = dim3(a.rows), .threads = kThreads, .shared_bytes = size_t(experts) * sizeof(float)}, stream(),
      p);
}

void CudaBackend::moe_combine(const MoeCombineArgs& a) {
  const Arena::Scope scope(scratch_);
  const int64_t count = int64_t{a.rows} * a.hidden;
  const float* routed = a.routed;
  int routed_lanes = a.lanes;
  if (a.config.latent_size > 0) {
    const int width = a.config.latent_size;
    bf16* y = scratch_.take<bf16>(int64_t{a.rows} * width);
    float* sum = scratch_.take<float>(count);
    launch_overlapping(latent_kernel, {.grid = dim3(a.rows), .threads = kThreads}, stream(), a.routed,
                       a.config.latent_norm ? a.weights.latent_norm : nullptr, a.eps, y, a.rows, width,
                       a.lanes);
    multiply(a.weights.latent_up, y, a.rows, sum, stream());
    routed = sum;
    routed_lanes = 1;
  }
  launch_overlapping(combine_kernel, {.grid = dim3(blocks(count)), .threads = kThreads}, stream(), routed,
                     routed_lanes, a.shared, a.lanes, a.stream, count);
}

}  // namespace perigee::cuda
