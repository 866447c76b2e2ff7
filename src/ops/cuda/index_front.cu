// index_front on any GPU since sm_80: the query's norm, the product for the index queries, and one warp for
// every vector that is quantised. Sums have one order: a thread's values ascending, then reduce.cuh's.
#include "ops/cuda/backend.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/fragments.cuh"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/products.h"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/require.h"
#include "ops/elementary.h"

namespace perigee::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kLaneValues = kIndexKeyDim / kWarp;  // 4 consecutive ones of a vector

__global__ void __launch_bounds__(kThreads)
    query_norm_kernel(const bf16* q_a, const float* norm, float eps, int size, bf16* cq) {
  __shared__ float of_warp[kWarps];
  begin_in_turn();
  const bf16* x = q_a + int64_t{blockIdx.x} * size;
  float squares = 0.0f;
  for (int d = threadIdx.x; d < size; d += kThreads) {
    const float v = bf16_to_float(x[d]);
    squares = __fmaf_rn(v, v, squares);
  }
  const float total = block_sum(squares, of_warp);
  const float scale = rsqrt(__fdiv_rn(total, static_cast<float>(size)) + eps);
  bf16* y = cq + int64_t{blockIdx.x} * size;
  for (int d = threadIdx.x; d < size; d += kThreads)
    y[d] = float_to_bf16(bf16_to_float(x[d]) * scale * norm[d]);
}

// What a warp makes of a vector: each lane its 4 codes and what they stand for.
struct Quantised {
  uint32_t code[kLaneValues];  // bf16, e4m3 or e2m1
  float scale;                 // fp8: of the vector; else 1
  uint8_t block_scale;         // mxfp4: of the lane's 32 values
};

// encode_index_key, by a warp.
__device__ Quantised quantise(IndexKeyFormat format, const float (&x)[kLaneValues]) {
  Quantised q{.code = {}, .scale = 1.0f, .block_scale = 0};
  uint32_t amax = __float_as_uint(max_magnitude(x, kLaneValues));  // magnitudes order as their bits do
  const int lanes = format == IndexKeyFormat::kMxfp4 ? kMxfp4Block / kLaneValues : kWarp;
  for (int stride = lanes / 2; stride > 0; stride /= 2)
    amax = max(amax, __shfl_xor_sync(kAllLanes, amax, stride));
  if (format == IndexKeyFormat::kBf16) {
    for (int i = 0; i < kLaneValues; ++i) q.code[i] = float_to_bf16(x[i]);
  } else if (format == IndexKeyFormat::kFp8) {
    const float most = __uint_as_float(amax);
    q.scale = most < 0x1p-100f ? 0.0f : __fdiv_rn(most, 448.0f);
    for (int i = 0; i < kLaneValues; ++i)
      q.code[i] = q.scale == 0.0f ? 0 : float_to_e4m3(__fdiv_rn(x[i], q.scale));
  } else {
    q.block_scale = mxfp4_scale_up(__uint_as_float(amax));
    const float inverse = q.block_scale == 0 ? 0.0f : e8m0_reciprocal(q.block_scale);
    for (int i = 0; i < kLaneValues; ++i) q.code[i] = float_to_e2m1(x[i] * inverse);
  }
  return q;
}

// The lane's values as readers see them, in bf16.
__device__ bf16 value_of(IndexKeyFormat format, const Quantised& q, int i) {
  if (format == IndexKeyFormat::kBf16) return static_cast<bf16>(q.code[i]);
  if (format == IndexKeyFormat::kFp8) return float_to_bf16(e4m3_to_float(static_cast<uint8_t>(q.code[i])));
  return float_to_bf16(e2m1_to_float(q.code[i]) * e8m0_to_float(q.block_scale));
}

__device__ void write_key(IndexKeyFormat format, const Quantised& q, uint8_t* values, uint8_t* scales) {
  const int lane = threadIdx.x % kWarp;
  if (format == IndexKeyFormat::kBf16) {
    reinterpret_cast<uint2*>(values)[lane] = {q.code[0] | q.code[1] << 16, q.code[2] | q.code[3] << 16};
  } else if (format == IndexKeyFormat::kFp8) {
    reinterpret_cast<uint32_t*>(values)[lane] =
        q.code[0] | q.code[1] << 8 | q.code[2] << 16 | q.code[3] << 24;
    if (lane == 0) *reinterpret_cast<float*>(scales) = q.scale;
  } else {
    reinterpret_cast<uint16_t*>(values)[lane] =
        static_cast<uint16_t>(q.code[0] | q.code[1] << 4 | q.code[2] << 8 | q.code[3] << 12);
    constexpr int kBlockLanes = kMxfp4Block / kLaneValues;
    if (lane % kBlockLanes == 0) scales[lane / kBlockLanes] = q.block_scale;
  }
}

struct Parameters {
  RowsView rows;
  PagesView pages;
  const float* query;        // [R, heads, 128]
  bf16* index_query;         // [R, heads, 128]
  float* weight;             // [R, heads]
  const bf16* key;           // [R, 128]
  const float *norm, *bias;  // [128]
  float eps, constant;
  int heads;
};

// One block a row: a warp quantises a head's query, or norms and quantises the key, which comes last.
__global__ void __launch_bounds__(kThreads) quantise_index_kernel(const Parameters a) {
  begin_in_turn();
  const int row = blockIdx.x, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const IndexKeyFormat format = a.pages.index_format;
  for (int v = warp; v <= a.heads; v += kWarps) {
    float x[kLaneValues];
    if (v < a.heads) {
      const int64_t at = int64_t{row} * a.heads + v;
      const float4 four = reinterpret_cast<const float4*>(a.query + at * kIndexKeyDim)[lane];
      x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
      const Quantised q = quantise(format, x);
      bf16 y[kLaneValues];
      for (int i = 0; i < kLaneValues; ++i) y[i] = value_of(format, q, i);
      reinterpret_cast<uint2*>(a.index_query + at * kIndexKeyDim)[lane] = {y[0] | uint32_t{y[1]} << 16,
                                                                           y[2] | uint32_t{y[3]} << 16};
      if (lane == 0) a.weight[at] = (a.weight[at] * q.scale) * a.constant;
      continue;
    }
    for (int i = 0; i < kLaneValues; ++i)
      x[i] = bf16_to_float(a.key[int64_t{row} * kIndexKeyDim + lane * kLaneValues + i]);
    const float mean = warp_sum(((x[0] + x[1]) + x[2]) + x[3]) / kIndexKeyDim;
    float squares = 0.0f;
    for (int i = 0; i < kLaneValues; ++i) {
      x[i] -= mean;
      squares = __fmaf_rn(x[i], x[i], squares);
    }
    const float scale = rsqrt(warp_sum(squares) / kIndexKeyDim + a.eps);
    for (int i = 0; i < kLaneValues; ++i) {
      const int d = lane * kLaneValues + i;
      x[i] = __fmaf_rn(x[i] * scale, a.norm[d], a.bias[d]);
    }
    const int64_t position = a.rows.position(row);
    uint8_t* page = a.pages.index_key(a.rows.sequence_of_row[row], position / kPageTokens);
    const int in_page = static_cast<int>(position % kPageTokens);
    write_key(format, quantise(format, x), page + index_value_offset(format, in_page),
              page + index_scale_offset(format, in_page));
  }
}

}  // namespace

void CudaBackend::index_front(const IndexFrontArgs& a) {
  if (a.rows == 0) return;
  const int q_lora = a.weights.q_a.out;
  launch_overlapping(query_norm_kernel, {.grid = dim3(a.rows), .threads = kThreads}, stream(), a.q_a,
                     a.weights.q_a_norm, a.eps, q_lora, a.cq);
  if (!a.weights.indexer) return;
  const IndexerWeights& w = *a.weights.indexer;
  const int heads = w.head_weight.out;
  require(w.q.out == heads * kIndexKeyDim, "index_front: outputs of the index query", w.q.out, "128 a head");
  Arena::Scope scope(scratch_);
  float* query = scratch_.take<float>(int64_t{a.rows} * w.q.out);
  multiply(w.q, a.cq, a.rows, query, stream());
  launch_overlapping(
      quantise_index_kernel, {.grid = dim3(a.rows), .threads = kThreads}, stream(),
      {.rows = tables_.rows(),
       .pages = tables_.pages(a.pages),
       .query = query,
       .index_query = a.index_query,
       .weight = a.index_weight,
       .key = a.index_key,
       .norm = w.k_norm,
       .bias = w.k_norm_bias,
       .eps = a.eps,
       .constant = 0.08838834764831845f * rsqrt(static_cast<float>(heads)),  // 128^-½ · heads^-½
       .heads = heads});
}

}  // namespace perigee::cuda
