// The parts of moe_experts (ops.h). With MXFP4 weights a product is one chain of matrix instructions over K,
// in the order of mxfp4_fragments.cuh, in two forms of the same bits.
#pragma once

#include <cuda_runtime_api.h>

#include "base/arena.h"
#include "ops/ops.h"

namespace perigee::cuda {

// What few_experts may be given: its sums over experts stand in shared memory.
constexpr int kMostFewEntries = 2048;

// MXFP4, few rows of an expert: weights are read once at the speed of memory, and the sum over experts is
// part of the second product. Computes rows [first, first + rows) of `a`: at most kMostFewEntries (row,
// choice) entries.
void few_experts(const MoeExpertsArgs& a, int first, int rows, Arena& scratch, cudaStream_t stream);

// MXFP4, many rows: an expert's weights are decoded once for up to 160 of them. In builds for Hopper
// (PERIGEE_SM90).
void many_experts(const MoeExpertsArgs& a, Arena& scratch, cudaStream_t stream);

// a.partial[lane, row] = Σ weight · down[entry, lane of columns] fp32, in ascending expert id; `down` bf16
// [entries, lanes of columns, in]. Lanes that are blocks of expert ids take those experts alone.
void sum_experts(const MoeExpertsArgs& a, const bf16* down, cudaStream_t stream);

}  // namespace perigee::cuda
