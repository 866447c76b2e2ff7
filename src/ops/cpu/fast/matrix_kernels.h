// Raw kernels of the matrix stages: pointers and sizes, no allocation, no threads. backend.cpp cuts the work
// into tasks. Compiled once per instruction set (simd.h).
#pragma once

namespace perigee::cpu {

struct MatrixKernels {};

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
