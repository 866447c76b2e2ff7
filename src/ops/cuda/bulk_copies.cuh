// Copies by Hopper's tensor memory accelerator into the shared memory of one block or of several blocks of a
// cluster, the barriers in shared memory that count their bytes, and the cluster itself; barriers of part of
// a block.
#pragma once

#include <cuda.h>

#include "ops/cuda/mma.cuh"

namespace perigee::cuda {

// A barrier in shared memory: a phase ends when all expected arrivals and all announced bytes have come.
using CopyBarrier = uint64_t;

__device__ inline void init_barrier(CopyBarrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}
// After init_barrier, before other threads and other blocks use the barriers.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void arrive(CopyBarrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// One arrival for a warp, after all its threads have come here.
__device__ inline void arrive_warp(CopyBarrier* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(barrier);
}
// One arrival, which announces `bytes` besides.
__device__ inline void arrive_expecting(CopyBarrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
// One arrival at the barrier of the same place in block `rank` of the cluster. It orders no writes of this
// thread before reads in the other block (a release at cluster scope costs a microsecond): it says that
// products have read a stage.
__device__ inline void arrive_at(CopyBarrier* barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}
// Until the phase of this parity (0 for the first, then alternating) has ended.
__device__ inline void wait_barrier(CopyBarrier* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
#if PERIGEE_SM90
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#else
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#endif
      "@!done bra again;\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// A box of a tensor map of four dimensions from (i, j, k, l) on, to the same place in every block of the
// cluster that `blocks` has a bit of; each one's `barrier` counts its bytes. Elements outside the tensor come
// as zeros.
__device__ inline void copy_box(void* to, const CUtensorMap& map, int i, int j, int k, int l,
                                CopyBarrier* barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_address(to)),
      "l"(&map), "r"(i), "r"(j), "r"(k), "r"(l), "r"(shared_address(barrier)), "h"(blocks)
      : "memory");
}

// `bytes` bytes of device memory, a multiple of 16, to the same place in every block of the cluster that
// `blocks` has a bit of, as copy_box. Addresses are 16-byte aligned.
__device__ inline void copy_bytes(void* to, const void* from, int bytes, CopyBarrier* barrier,
                                  uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, "
      "[%3], %4;" ::"r"(shared_address(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier)), "h"(blocks)
      : "memory");
}
// Arrives when the copies that this thread made before by copy_16 (mma.cuh) have come, as one of the expected
// arrivals.
__device__ inline void arrive_after_copies(CopyBarrier* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

__device__ inline uint32_t rank_in_cluster() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// What lies at the same place in block `rank` of the cluster.
__device__ inline uint32_t shared_address_in(uint32_t rank, const void* p) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(rank));
  return there;
}
// Both arrive at the same place in block `rank`, whose `barrier` counts their bytes: who waits for it sees
// them. No fence at cluster scope is needed (it costs a microsecond).
__device__ inline void store_in(uint32_t rank, float4* to, const float4& x, CopyBarrier* barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          shared_address_in(rank, to)),
      "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(shared_address_in(rank, barrier))
      : "memory");
}
// `bytes` from here; written before a publish_to_products() and a barrier of the block. By one thread of a
// warp.
__device__ inline void copy_in(uint32_t rank, const void* what, int bytes, CopyBarrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address_in(rank, what)),
      "r"(shared_address(what)), "r"(bytes), "r"(shared_address_in(rank, barrier))
      : "memory");
}

// `kThreads` threads of the block, whole warps, wait for each other at hardware barrier `kNumber` (1 … 15).
template <int kNumber, int kThreads>
__device__ inline void sync_threads() {
  asm volatile("bar.sync %0, %1;" ::"n"(kNumber), "n"(kThreads) : "memory");
}

// A barrier of all threads of the cluster in two halves. It orders nothing but itself.
__device__ inline void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void wait_for_cluster() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
// A barrier of all threads of the cluster; what one wrote before, to global memory too, all see after. Before
// Hopper there are no clusters.
__device__ inline void sync_cluster() {
#if PERIGEE_SM90
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#endif
}

}  // namespace perigee::cuda
