// mla_project, mla_query, mla_output on any GPU since sm_80: products, and what stands between them.
#include "ops/cuda/backend.h"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/products.h"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/require.h"
#include "ops/elementary.h"

namespace perigee::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kThreadValues = kLatentRank / kThreads;  // 4 consecutive ones of the latent

struct LatentParameters {
  RowsView rows;
  PagesView pages;
  const bf16* kv_a;   // [R, 576]
  const float* norm;  // [512]
  float eps;
  const bf16* q;  // [R, heads, nope + 64]
  bf16* query;    // [R, heads, 576]
  int heads, nope;
};

// One block a row: the latent goes into its page, by the functions of formats/cache_records.h; the part of
// every head's query that is not absorbed moves behind the absorbed part. The norm's sum: a thread's values
// ascending, then reduce.cuh's order.
__global__ void __launch_bounds__(kThreads) write_latent_kernel(const LatentParameters a) {
  __shared__ float record[kLatentDim];
  __shared__ float of_warp[kThreads / kWarp];
  begin_in_turn();
  const int row = blockIdx.x, thread = threadIdx.x;
  const bf16* kv = a.kv_a + int64_t{row} * kLatentDim;
  float x[kThreadValues], squares = 0.0f;
  for (int i = 0; i < kThreadValues; ++i) {
    x[i] = bf16_to_float(kv[thread * kThreadValues + i]);
    squares = __fmaf_rn(x[i], x[i], squares);
  }
  const float scale = rsqrt(block_sum(squares, of_warp) / kLatentRank + a.eps);
  for (int i = 0; i < kThreadValues; ++i) {
    const int d = thread * kThreadValues + i;
    record[d] = x[i] * scale * a.norm[d];
  }
  if (thread < kLatentRope) record[kLatentRank + thread] = bf16_to_float(kv[kLatentRank + thread]);
  __syncthreads();

  const int64_t position = a.rows.position(row);
  const LatentFormat format = a.pages.latent_format;
  uint8_t* out = a.pages.latent(a.rows.sequence_of_row[row], position / kPageTokens) +
                 position % kPageTokens * latent_bytes(format);
  const float r = 1.0f / a.pages.latent_scale;
  if (format == LatentFormat::kBf16) {
    for (int d = thread; d < kLatentDim; d += kThreads)
      reinterpret_cast<bf16*>(out)[d] = float_to_bf16(record[d]);
  } else if (format == LatentFormat::kFp8) {
    for (int d = thread; d < kLatentDim; d += kThreads) out[d] = float_to_e4m3(record[d] * r);
  } else {
    constexpr int kQuantised = kLatentRank / kNvfp4Block;
    if (thread < kQuantised) {
      out[kNvfp4ScaleOffset + thread] =
          nvfp4_quantize_block(record + thread * kNvfp4Block, r, out + thread * kNvfp4Block / 2);
    } else if (thread >= kThreads - kLatentRope) {
      const int d = thread - (kThreads - kLatentRope);
      out[kNvfp4RopeOffset + d] = float_to_e4m3(record[kLatentRank + d] * r);
    }
    static_assert(kQuantised + kLatentRope <= kThreads);
  }

  constexpr int kPieces = kLatentRope / 8;  // of 16 bytes
  for (int at = thread; at < a.heads * kPieces; at += kThreads) {
    const int64_t head = int64_t{row} * a.heads + at / kPieces;
    reinterpret_cast<uint4*>(a.query + head * kLatentDim + kLatentRank)[at % kPieces] =
        reinterpret_cast<const uint4*>(a.q + head * (a.nope + kLatentRope) + a.nope)[at % kPieces];
  }
}

__global__ void __launch_bounds__(kThreads)
    gate_kernel(const float* value, const bf16* gate, bf16* out, int64_t count) {
  begin_in_turn();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) out[i] = float_to_bf16(value[i] * sigmoid(bf16_to_float(gate[i])));
}

}  // namespace

void CudaBackend::mla_project(const MlaProjectArgs& a) {
  const MlaWeights& w = a.weights;
  if (a.rows == 0) return;
  std::vector<Product> products{product(w.kv_a, a.x, a.rows, a.kv_a)};
  if (w.q_a.weight) products.push_back(product(w.q_a, a.x, a.rows, a.q_a));
  if (w.gate.weight) products.push_back(product(w.gate, a.x, a.rows, a.gate));
  if (w.indexer) {
    products.push_back(product(w.indexer->k, a.x, a.rows, a.index_key));
    products.push_back(product(w.indexer->head_weight, a.x, a.rows, a.index_weight));
  }
  multiply_all(products, stream());
}

void CudaBackend::mla_query(const MlaQueryArgs& a) {
  const MlaConfig& c = a.config;
  require(c.kv_lora_rank == kLatentRank, "mla_query: kv_lora_rank", c.kv_lora_rank, "512");
  require(c.qk_rope_head_dim == kLatentRope, "mla_query: qk_rope_head_dim", c.qk_rope_head_dim, "64");
  require(c.qk_nope_head_dim % 8 == 0, "mla_query: qk_nope_head_dim", c.qk_nope_head_dim, "multiples of 8");
  if (a.rows == 0) return;
  const int heads = c.num_heads, nope = c.qk_nope_head_dim, qk = c.qk_head_dim();
  Arena::Scope scope(scratch_);
  bf16* q = scratch_.take<bf16>(int64_t{a.rows} * heads * qk);
  multiply(a.weights.q, a.q_input, a.rows, q, stream());
  multiply({.w = a.weights.w_uk_t.weight,
            .w_stride = nope,
            .w_batch = int64_t{kLatentRank} * nope,
            .x = q,
            .x_stride = int64_t{heads} * qk,
            .x_batch = qk,
            .y_bf16 = a.query,
            .y_stride = int64_t{heads} * kLatentDim,
            .y_batch = kLatentDim,
            .rows = a.rows,
            .outputs = kLatentRank,
            .k = nope,
            .batches = heads},
           stream());
  launch_overlapping(write_latent_kernel, {.grid = dim3(a.rows), .threads = kThreads}, stream(),
                     {.rows = tables_.rows(),
                      .pages = tables_.pages(a.pages),
                      .kv_a = a.kv_a,
                      .norm = a.weights.kv_a_norm,
                      .eps = a.eps,
                      .q = q,
                      .query = a.query,
                      .heads = heads,
                      .nope = nope});
}

void CudaBackend::mla_output(const MlaOutputArgs& a) {
  if (a.rows == 0) return;
  const int heads = a.config.num_heads, v = a.config.v_head_dim, rank = a.config.kv_lora_rank;
  const int64_t count = int64_t{a.rows} * heads * v;
  Arena::Scope scope(scratch_);
  bf16* o = scratch_.take<bf16>(count);
  float* value = a.gate ? scratch_.take<float>(count) : nullptr;
  multiply({.w = a.weights.w_uv.weight,
            .w_stride = rank,
            .w_batch = int64_t{v} * rank,
            .x = a.z,
            .x_stride = int64_t{heads} * rank,
            .x_batch = rank,
            .y_bf16 = a.gate ? nullptr : o,
            .y_fp32 = value,
            .y_stride = int64_t{heads} * v,
            .y_batch = v,
            .rows = a.rows,
            .outputs = v,
            .k = rank,
            .batches = heads},
           stream());
  if (a.gate) {
    const dim3 grid(static_cast<unsigned>((count + kThreads - 1) / kThreads));
    launch_overlapping(gate_kernel, {.grid = grid, .threads = kThreads}, stream(), value, a.gate, o, count);
  }
  multiply_lanes(a.weights.o, o, a.rows, a.lanes, a.partial, stream());
}

}  // namespace perigee::cuda
