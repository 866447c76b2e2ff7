// Raw kernels of the sequence stages: pointers and sizes, no allocation, no threads. backend.cpp cuts the work
// into tasks. Compiled once per instruction set (simd.h).
#pragma once

namespace perigee::cpu {

struct SequenceKernels {};

namespace avx2 {
extern const SequenceKernels sequence_kernels;
}
namespace avx512 {
extern const SequenceKernels sequence_kernels;
}
#ifdef PERIGEE_TEST_HOOKS
namespace avx512_emulated {
extern const SequenceKernels sequence_kernels;
}
#endif

}  // namespace perigee::cpu
