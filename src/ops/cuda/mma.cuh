// Warp-level pieces of matrix products: asynchronous 16-byte copies to shared memory, fragment loads, and the
// bf16 matrix instruction m16n8k16 with an fp32 accumulator. A tile of shared memory has rows of kTileK
// values; the 16-byte pieces of a row are permuted by the row's number so that fragment loads meet no bank
// conflicts.
#pragma once

#include <cstdint>

#include "formats/bf16.h"

namespace perigee::cuda {

constexpr int kTileK = 64;  // values of K in a row of a tile: 128 bytes
constexpr int kStepK = 16;  // of one matrix instruction
constexpr int kPiece = 8;   // values in 16 bytes

// Where piece `piece` of row `row` starts in a tile, in values.
__device__ inline int tile_offset(int row, int piece) { return row * kTileK + ((piece ^ row) & 7) * kPiece; }

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// 16 bytes, or zeros when there is nothing to copy (`from` is then not read).
__device__ inline void copy_16(void* to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(exists ? 16 : 0)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;"); }
// Until at most `kPending` groups of this thread are under way.
template <int kPending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Rows [row, row + 16) × 16 values of K: thread 4g + t holds rows g and g + 8, columns 2t, 2t + 1 and 8
// later.
struct FragmentA {
  uint32_t x[4];
};
__device__ inline FragmentA load_a(const bf16* tile, int row, int step) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t at = shared_address(tile + tile_offset(row + lane % 16, 2 * step + lane / 16));
  FragmentA f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(f.x[0]), "=r"(f.x[1]), "=r"(f.x[2]), "=r"(f.x[3])
               : "r"(at)
               : "memory");
  return f;
}

// Rows [row, row + 8) × 16 values of K, as the transposed second operand.
struct FragmentB {
  uint32_t x[2];
};
__device__ inline FragmentB load_b(const bf16* tile, int row, int step) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t at = shared_address(tile + tile_offset(row + lane % 8, 2 * step + lane / 8 % 2));
  FragmentB f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(f.x[0]), "=r"(f.x[1])
               : "r"(at)
               : "memory");
  return f;
}

// c[16, 8] += a[16, 16] · b[8, 16]ᵀ. Thread 4g + t holds c of (row g, columns 2t, 2t + 1), then of row g + 8.
__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void multiply_add(float (&c)[4], const FragmentA& a, const FragmentB& b) {
  mma(c, a.x, b.x);
}

// Two values as bf16, the first in the low half; float_to_bf16 of each, in one instruction.
__device__ inline uint32_t bf16_pair(float first, float second) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

}  // namespace perigee::cuda
