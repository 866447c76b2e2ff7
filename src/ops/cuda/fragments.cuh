// Operands of matrix instructions from shared memory whose rows lie any multiple of 8 values apart: rows
// padded by 8 values (16 bytes) meet no bank conflicts. And what else kernels of sparse rows share.
#pragma once

#include "ops/cuda/mma.cuh"

namespace perigee::cuda {

constexpr int kRowPad = 8;  // values

// Four 8×8 matrices: lane i names row i % 8 of matrix i / 8.
__device__ inline void load_matrices(uint32_t (&x)[4], const bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ inline void load_matrices_transposed(uint32_t (&x)[4], const bf16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(row))
               : "memory");
}

// The first operand: rows [0, 16) × 16 values of K from `tile` on.
__device__ inline FragmentA load_first(const bf16* tile, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  FragmentA f;
  load_matrices(f.x, tile + lane % 16 * stride + lane / 16 * 8);
  return f;
}

// Two steps of the second operand, whose columns are rows [0, 8) of `tile`: 32 values of K.
__device__ inline void load_second(FragmentB (&f)[2], const bf16* tile, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t x[4];
  load_matrices(x, tile + lane % 8 * stride + lane / 8 * 8);
  f[0] = {{x[0], x[1]}};
  f[1] = {{x[2], x[3]}};
}

// The same where K runs over 32 rows of `tile` and the eight columns are its first.
__device__ inline void load_second_transposed(FragmentB (&f)[2], const bf16* tile, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t x[4];
  load_matrices_transposed(x, tile + lane * stride);
  f[0] = {{x[0], x[1]}};
  f[1] = {{x[2], x[3]}};
}

// copy_16 for 4 bytes.
__device__ inline void copy_4(void* to, const void* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(exists ? 4 : 0)
               : "memory");
}

}  // namespace perigee::cuda
