// The kernels of the fast CPU backend as tables of functions, one table per instruction set, chosen at run
// time. All tables give the same bits; only speed differs.
#pragma once

#include <string>
#include <vector>

namespace perigee::cpu {

struct MatrixKernels;    // products with weights: matrix_kernels.h
struct SequenceKernels;  // index, attention, KDA, mixing: sequence_kernels.h

struct Kernels {
  const char* name;
  const MatrixKernels* matrix;
  const SequenceKernels* sequence;
};

// By name, or nullptr when this CPU cannot run them. "avx512" needs AVX-512 F, BW, DQ, VL and BF16.
// Test builds also know "avx512-emulated": the AVX-512 source on AVX2.
const Kernels* find_kernels(const std::string& name);
// The fastest this CPU can run; nullptr when it has not even AVX2 and FMA.
const Kernels* best_kernels();

}  // namespace perigee::cpu
