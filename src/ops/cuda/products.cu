#include "ops/cuda/products.h"

#include <algorithm>

#include "ops/cuda/activation.cuh"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/launch_products.cuh"
#include "ops/elementary.h"
#if PERIGEE_SM90
#include "ops/cuda/many_rows_sm90.cuh"
#endif

namespace perigee::cuda {
#if !PERIGEE_SM90
struct Grid {};
struct NoColumns {};
#endif
namespace {

// What finishing takes of an output, whatever the row.
struct Decay {
  float rate = 0.0f, bias = 0.0f;
  __device__ Decay(const Finish& f, int output) {
    if (f.kind == Finish::kKdaDecay) rate = exp(f.a_log[output / f.head_dim]), bias = f.dt_bias[output];
  }
};
__device__ float finished(const Finish& f, const Decay& of, float x) {
  if (f.kind == Finish::kSigmoid) return sigmoid(x);
  if (f.kind == Finish::kKdaDecay) {
    const float u = x + of.bias;
    return f.bounded ? f.bound * sigmoid(of.rate * u) : -of.rate * softplus(u);
  }
  return x;
}

// A Product, one batch a blockIdx.z.
struct ProductJob : DenseWeights<1>, Grid {
  static constexpr bool kWeightsKnown = true;
  Product p;
  int first_row = 0;

  template <int kOutputs, int kRows>
  __device__ bool begin() {
    begin_at<kOutputs, kRows>(static_cast<int>(blockIdx.x));
    return true;
  }
  template <int kOutputs, int kRows>
  __device__ void begin_at(int block) {
    const int64_t batch = blockIdx.z;
    w[0] = p.w + batch * p.w_batch;
    stride = p.w_stride;
    outputs = p.outputs;
    first_output = block * kOutputs;
    first_row = static_cast<int>(blockIdx.y) * kRows;
    p.x += batch * p.x_batch;
  }
  __device__ int k() const { return p.k; }
  __device__ const bf16* row(int r) const {
    if (first_row + r >= p.rows) return nullptr;
    return p.x + (p.x_rows ? p.x_rows[first_row + r] : first_row + r) * p.x_stride;
  }
  __device__ const bf16* any_row() const { return p.x; }
  __device__ void finish(int output, int r, const float (&value)[1]) const {
    output += first_output;
    r += first_row;
    if (output >= outputs || r >= p.rows) return;
    const int64_t at = result(output, r, static_cast<int>(blockIdx.z));
    const float x = finished(p.finish, Decay(p.finish, output), value[0]);
    if (p.y_bf16) {
      p.y_bf16[at] = float_to_bf16(x);
    } else {
      p.y_fp32[at] = x;
    }
  }
#if PERIGEE_SM90
  struct Columns {
    Decay of[4];
  };
  __device__ Columns columns(int output, int count) const {
    const auto of = [&](int i) { return Decay(p.finish, output + min(i, count - 1)); };
    return {{of(0), of(1), of(2), of(3)}};
  }
  __device__ void finish_four(const Columns& c, int output, int count, int r, int batch,
                              const float4 (&value)[1]) const {
    const int64_t at = result(output, r, batch);
    float x[4] = {value[0].x, value[0].y, value[0].z, value[0].w};
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = finished(p.finish, c.of[i], x[i]);
    const float4 all{x[0], x[1], x[2], x[3]};
    if (p.y_bf16) {
      store_four(p.y_bf16 + at, count, all);
    } else {
      store_four(p.y_fp32 + at, count, all);
    }
  }
#endif

 private:
  __device__ int64_t result(int output, int r, int batch) const {
    return batch * p.y_batch + r * p.y_stride + output;
  }
};

// act(gate x, up x) → bf16.
struct GluJob : DenseWeights<2>, Grid, NoColumns {
  static constexpr bool kWeightsKnown = true;
  const bf16* x = nullptr;
  bf16* out = nullptr;
  ActivationParams activation;
  int rows = 0, length = 0, first_row = 0;

  template <int kOutputs, int kRows>
  __device__ bool begin() {
    first_output = static_cast<int>(blockIdx.x) * kOutputs;
    first_row = static_cast<int>(blockIdx.y) * kRows;
    return true;
  }
  __device__ int k() const { return length; }
  __device__ const bf16* row(int r) const {
    return first_row + r < rows ? x + int64_t{first_row + r} * length : nullptr;
  }
  __device__ const bf16* any_row() const { return x; }
  __device__ void finish(int output, int r, const float (&value)[2]) const {
    output += first_output;
    r += first_row;
    if (output >= outputs || r >= rows) return;
    out[int64_t{r} * outputs + output] = float_to_bf16(activate(activation, value[0], value[1]));
  }
#if PERIGEE_SM90
  __device__ void finish_four(Columns, int output, int count, int r, int, const float4 (&value)[2]) const {
    store_four(out + int64_t{r} * outputs + output, count, activate(activation, value[0], value[1]));
  }
#endif
};

// Several Products of the same number of rows and K, without batches, their blocks side by side.
struct ProductsJob : ProductJob {
  static constexpr int kMost = 8;
  Product parts[kMost];
  int first_block[kMost] = {};
  int count = 0;

  template <int kOutputs, int kRows>
  __device__ bool begin() {
    const int block = static_cast<int>(blockIdx.x);
    p = parts[0];
    int before = 0;
#pragma unroll
    for (int i = 1; i < kMost; ++i) {
      if (i < count && block >= first_block[i]) p = parts[i], before = first_block[i];
    }
    begin_at<kOutputs, kRows>(block - before);
    return true;
  }
};

Product linear_product(const Linear& w, const bf16* x, int rows) {
  return {.w = w.weight,
          .w_stride = w.in,
          .x = x,
          .x_stride = w.in,
          .y_stride = w.out,
          .rows = rows,
          .outputs = w.out,
          .k = w.in};
}

}  // namespace

void multiply(const Product& p, cudaStream_t stream) {
  if (p.rows == 0 || p.outputs == 0) return;
  ProductJob job;
  job.p = p;
#if PERIGEE_SM90
  if (row_tile(p.rows) == kManyTile && !p.x_rows) {
    multiply_many<ProductJob>({.w = {tile_map(p.w, p.k, p.outputs, p.batches, p.w_stride, p.w_batch)},
                               .x = tile_map(p.x, p.k, p.rows, p.batches, p.x_stride, p.x_batch),
                               .job = job,
                               .k = p.k,
                               .outputs = p.outputs,
                               .rows = p.rows,
                               .batches = p.batches},
                              stream);
    return;
  }
#endif
  launch_product(
      job,
      {.outputs = p.outputs, .k = p.k, .row_tile = row_tile(p.rows), .rows = p.rows, .batches = p.batches},
      stream);
}

void multiply(const Linear& w, const bf16* x, int rows, bf16* y, cudaStream_t stream) {
  multiply(product(w, x, rows, y), stream);
}
void multiply(const Linear& w, const bf16* x, int rows, float* y, cudaStream_t stream) {
  multiply(product(w, x, rows, y), stream);
}

void multiply_all(std::span<const Product> products, cudaStream_t stream) {
  if (products.empty() || products[0].rows == 0) return;
  const Product& first = products[0];
  const bool together = std::all_of(products.begin(), products.end(), [&](const Product& p) {
    return p.rows == first.rows && p.k == first.k && p.batches == 1;
  });
  if (!together || row_tile(first.rows) == kManyTile || products.size() > ProductsJob::kMost) {
    for (const Product& p : products) multiply(p, stream);
    return;
  }
  ProductsJob job;
  constexpr int kOutputs = FewRows<ProductsJob, 8>::kOutputs;  // of a block, for any few rows
  static_assert(kOutputs == FewRows<ProductsJob, 32>::kOutputs);
  int blocks = 0;
  for (const Product& p : products) {
    job.first_block[job.count] = blocks;
    job.parts[job.count++] = p;
    blocks += (p.outputs + kOutputs - 1) / kOutputs;
  }
  launch_product(
      job, {.outputs = blocks * kOutputs, .k = first.k, .row_tile = row_tile(first.rows), .rows = first.rows},
      stream);
}

Product product(const Linear& w, const bf16* x, int rows, bf16* y) {
  Product p = linear_product(w, x, rows);
  p.y_bf16 = y;
  return p;
}
Product product(const Linear& w, const bf16* x, int rows, float* y) {
  Product p = linear_product(w, x, rows);
  p.y_fp32 = y;
  return p;
}

void multiply_lanes(const Linear& w, const bf16* x, int rows, int lanes, float* partial,
                    cudaStream_t stream) {
  Product p = linear_product(w, x, rows);
  p.y_fp32 = partial;
  p.k = w.in / lanes;
  p.batches = lanes;
  p.w_batch = p.x_batch = p.k;
  p.y_batch = int64_t{rows} * w.out;
  multiply(p, stream);
}

void multiply_glu(const Linear& gate, const Linear& up, const ActivationParams& activation, const bf16* x,
                  int rows, bf16* out, cudaStream_t stream) {
  if (rows == 0) return;
  GluJob job;
  job.w[0] = gate.weight;
  job.w[1] = up.weight;
  job.stride = gate.in;
  job.outputs = gate.out;
  job.x = x;
  job.out = out;
  job.activation = activation;
  job.rows = rows;
  job.length = gate.in;
#if PERIGEE_SM90
  if (row_tile(rows) == kManyTile) {
    const auto map = [&](const bf16* data, int count) {
      return tile_map(data, gate.in, count, 1, gate.in, 0);
    };
    multiply_many<GluJob>({.w = {map(gate.weight, gate.out), map(up.weight, up.out)},
                           .x = map(x, rows),
                           .job = job,
                           .k = gate.in,
                           .outputs = gate.out,
                           .rows = rows},
                          stream);
    return;
  }
#endif
  launch_product(job, {.outputs = gate.out, .k = gate.in, .row_tile = row_tile(rows), .rows = rows}, stream);
}

}  // namespace perigee::cuda
