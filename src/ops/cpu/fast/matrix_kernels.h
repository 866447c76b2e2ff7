// Raw kernels of the matrix stages: pointers and sizes, no allocation, no threads. products.cpp and the
// stages cut the work into tasks. Compiled once per instruction set (simd.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/bf16.h"
#include "ops/cpu/fast/tiles.h"

namespace perigee::cpu {

constexpr int kMostProductRows = 96;  // of one call; their activations fit the L2 cache

constexpr int kMostProductBlocks = 4;

// y = the product sums of some blocks of 16 outputs of bf16, or of one block of 32 of MXFP4, with some rows.
struct ProductArgs {
  const std::byte* tiles;  // of the first block, at the segment's first K block; for MXFP4 the pairs
  int64_t block_bytes, partial_bytes;
  int blocks;
  int64_t steps;       // K blocks of the segment
  const float* scale;  // [steps, 32] from mxfp4_scales; unused for bf16
  const std::byte* x;  // the rows as `spread` wrote them
  int rows;            // up to kMostProductRows
  std::byte* scratch;  // scratch_bytes(steps), 64-byte aligned
  float* y;            // [rows, y_stride]
  int64_t y_stride;
};

struct DecayArgs {
  const float* y;        // [n]
  const float* dt_bias;  // [n]
  float rate;            // exp(A_log) of the head
  bool bounded;
  float bound;
  float* g;  // [n]
};

struct ActivationArgs {
  const float *gate, *up;  // [n]
  bool situ;
  float beta, linear_beta;
  bf16* out;  // [n]
};

// Lanes of the lane rule: value d of lane l is first[l · stride + d].
struct LaneArgs {
  const float* first;
  int64_t stride;
  int lanes;
};

struct MatrixKernels {
  int operand_bytes;  // of one pair of x in the order of `spread`

  // Rows of x in the order in which a product of as many rows reads them: rows · k_blocks(k) · 16 operands.
  void (*spread)(const bf16* const* x, int rows, int k, bool mxfp4, std::byte* out);
  int64_t (*scratch_bytes)(int64_t steps);
  void (*product)(const ProductArgs& args);
  void (*mxfp4_scales)(const std::byte* scales, int64_t steps, float* out);  // as fp32 [steps, 32]
  void (*mxfp4_product)(const ProductArgs& args);

  // Over n values, any n; the formulas are those of ops.h.
  void (*round)(const float* y, int n, bf16* out);
  void (*widen)(const bf16* x, int n, float* out);
  void (*sigmoid)(const float* y, int n, float* out);
  void (*decay)(const DecayArgs& args, int n);
  void (*activate)(const ActivationArgs& args, int n);
  void (*gate)(const float* y, const bf16* gate, int n, bf16* out);  // y ⊙ σ(gate)
  void (*tree)(const LaneArgs& args, int n, float* out);
  void (*add_residual)(const float* routed, const float* shared, int n, bf16* stream);  // shared may be null
  // y[d] += weight · x[d]
  void (*add_scaled)(const bf16* x, float weight, int n, float* y);

  // Over n values, n a multiple of 16.
  void (*rms)(const float* x, const float* weight, float eps, int n, bf16* out);
  // One head of KDA's output: rms(o; norm) ⊙ σ(gate).
  void (*gated_rms)(const float* o, const float* norm, const bf16* gate, float eps, int n, bf16* out);
};

namespace avx2 {
extern const MatrixKernels matrix_kernels;
}
namespace avx512 {
extern const MatrixKernels matrix_kernels;
}
#ifdef PERIGEE_TEST_HOOKS
namespace avx512_emulated {
extern const MatrixKernels matrix_kernels;
}
#endif

}  // namespace perigee::cpu
