#include "ops/cpu/fast/sequence_kernels.h"

#include "ops/cpu/fast/simd_elementary.h"

namespace perigee::cpu::PERIGEE_ISA {

const SequenceKernels sequence_kernels{};

}  // namespace perigee::cpu::PERIGEE_ISA
