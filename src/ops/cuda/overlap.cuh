// Programmatic dependent launch: a kernel that begins while the one before it in the stream still runs, reads
// what does not come from that one (weights), and then waits for it. GPUs before Hopper run one after the
// other.
//
// A kernel lets the next begin only after its own wait. So whatever runs before a wait may read what the
// kernels before the previous one wrote, and no kernel ends before one ahead of it.
#pragma once

#include <type_traits>

#include "ops/cuda/cuda_check.h"

namespace perigee::cuda {

// In the earlier kernel: the next may begin. Called after wait_for_previous, or in a kernel launched without
// the overlap.
__device__ inline void let_next_begin() {
#if PERIGEE_SM90
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// In the later kernel: until the earlier one has ended. Nothing that it writes is read before. Some thread of
// every block of an overlapping kernel comes here.
__device__ inline void wait_for_previous() {
#if PERIGEE_SM90
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Both, for a kernel that has nothing to do before.
__device__ inline void begin_in_turn() {
  wait_for_previous();
  let_next_begin();
}

struct OverlappingLaunch {
  dim3 grid;
  int threads;
  size_t shared_bytes = 0;
  unsigned cluster = 1;  // blocks along x
};

// Launches the later kernel.
template <typename... Params>
void launch_overlapping(void (*kernel)(Params...), const OverlappingLaunch& launch, cudaStream_t stream,
                        const std::type_identity_t<Params>&... params) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {launch.cluster, 1, 1};
  const cudaLaunchConfig_t config{.gridDim = launch.grid,
                                  .blockDim = dim3(launch.threads),
                                  .dynamicSmemBytes = launch.shared_bytes,
                                  .stream = stream,
                                  .attrs = attributes,
                                  .numAttrs = !PERIGEE_SM90        ? 0u
                                              : launch.cluster > 1 ? 2u
                                                                   : 1u};
  cuda_check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(params)...), "cudaLaunchKernelEx");
}

}  // namespace perigee::cuda
