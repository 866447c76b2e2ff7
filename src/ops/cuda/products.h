// y = W x on CUDA devices. An output element is a sum over K in ascending order: segments of K are chains of
// bf16 matrix instructions (m16n8k16) with an fp32 accumulator, added left to right. How many segments
// depends on the shape of W alone, so an element's bits depend on its row of x and its row of W and on
// nothing else.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "ops/ops.h"

namespace perigee::cuda {

// What a sum becomes before it is written: itself, its sigmoid, or the log decay of a KDA channel
// (KdaProjectArgs::g), where outputs are channels.
struct Finish {
  enum Kind { kAsItIs, kSigmoid, kKdaDecay };
  Kind kind = kAsItIs;
  // For kKdaDecay:
  const float *a_log = nullptr, *dt_bias = nullptr;  // [heads], [outputs]
  int head_dim = 0;
  bool bounded = false;
  float bound = 0.0f;
};

// One product, or `batches` of the same shape (lanes, heads). Strides are in elements; K and every stride of
// w and x are multiples of 8, pointers 16-byte aligned.
struct Product {
  const bf16* w = nullptr;
  int64_t w_stride = 0, w_batch = 0;  // of a row, of a batch
  const bf16* x = nullptr;
  int64_t x_stride = 0, x_batch = 0;
  const int* x_rows = nullptr;  // on the device: row r of y is of row x_rows[r] of x; null: of row r
  // Exactly one of the two is set: rounded to bf16, or fp32 as it is.
  bf16* y_bf16 = nullptr;
  float* y_fp32 = nullptr;
  int64_t y_stride = 0, y_batch = 0;
  Finish finish = {};
  int rows = 0, outputs = 0, k = 0, batches = 1;
};

void multiply(const Product& product, cudaStream_t stream);
// The same for several products; those of one number of rows and one K, without batches, in one launch when
// rows are few.
void multiply_all(std::span<const Product> products, cudaStream_t stream);

// The common cases: y[rows, w.out] = W x[rows, w.in].
Product product(const Linear& w, const bf16* x, int rows, bf16* y);
Product product(const Linear& w, const bf16* x, int rows, float* y);
void multiply(const Linear& w, const bf16* x, int rows, bf16* y, cudaStream_t stream);
void multiply(const Linear& w, const bf16* x, int rows, float* y, cudaStream_t stream);
// The lane rule: partial[lanes, rows, w.out], lane l over its block of w.in / lanes columns.
void multiply_lanes(const Linear& w, const bf16* x, int rows, int lanes, float* partial, cudaStream_t stream);
// out[rows, gate.out] = act(gate x, up x) fp32 → bf16.
void multiply_glu(const Linear& gate, const Linear& up, const ActivationParams& activation, const bf16* x,
                  int rows, bf16* out, cudaStream_t stream);

}  // namespace perigee::cuda
