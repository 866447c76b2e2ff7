#include "ops/cpu/fast/matrix_kernels.h"

#include "ops/cpu/fast/simd_elementary.h"

namespace perigee::cpu::PERIGEE_ISA {

const MatrixKernels matrix_kernels{};

}  // namespace perigee::cpu::PERIGEE_ISA
