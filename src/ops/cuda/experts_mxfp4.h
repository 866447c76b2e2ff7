// moe_experts with MXFP4 weights (ops.h), in two forms of the same bits. A product is one chain of matrix instructions
// over K, in the order of mxfp4_fragments.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include "base/memory.h"
#include "ops/ops.h"

namespace perigee::cuda {

// What few_experts may be given: its sums over experts stand in shared memory.
constexpr int kMostFewEntries = 2048;

// For few rows of an expert: weights are read once at the speed of memory, and the sum over experts is part of the second
// product. Computes rows [first, first + rows) of `a`: at most kMostFewEntries (row, choice) entries.
void few_experts(const MoeExpertsArgs& a, int first, int rows, Arena& scratch, cudaStream_t stream);

// For many rows: an expert's weights are decoded once for up to 192 of them. In builds for Hopper (PERIGEE_SM90).
void many_experts(const MoeExpertsArgs& a, Arena& scratch, cudaStream_t stream);

}  // namespace perigee::cuda
