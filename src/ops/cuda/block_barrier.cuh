// Barriers in shared memory that threads of one block arrive at and wait for by phases: who fills a buffer and
// who uses it, without stopping the whole block. sm_90.
#pragma once

#include "ops/cuda/mma.cuh"

namespace perigee::cuda {

// A phase ends when all expected arrivals have come; then the next begins.
struct BlockBarrier {
  uint64_t state;

  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals)
                 : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  // One arrival for a warp, after all its threads have come here.
  __device__ void arrive_warp() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive();
  }
  // Until a phase of this parity has ended: 0 is the first phase, 1 the one before it, which has.
  __device__ void wait(uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(this)),
        "r"(parity)
        : "memory");
  }
};

// `threads` threads of the block, whole warps, wait for each other at hardware barrier `number` (1 … 15).
template <int kNumber, int kThreads>
__device__ inline void sync_threads() {
  asm volatile("bar.sync %0, %1;" ::"n"(kNumber), "n"(kThreads) : "memory");
}

// How many registers a thread of this warpgroup has from here on; multiples of 8.
template <int kRegisters>
__device__ inline void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace perigee::cuda
