// Programmatic dependent launch: a kernel that begins while the one before it in the stream still runs, reads
// what does not come from that one (weights), and then waits for it. GPUs before Hopper run one after the
// other.
#pragma once

#include "ops/cuda/cuda_check.h"

namespace perigee::cuda {

// In the earlier kernel: the next may begin. Called after wait_for_previous, or in a kernel launched without
// the overlap, so that the next one may read what the kernels before this one wrote.
__device__ inline void let_next_begin() {
#if PERIGEE_SM90
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// In the later kernel: until the earlier one has ended. Nothing that it writes is read before.
__device__ inline void wait_for_previous() {
#if PERIGEE_SM90
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Launches the later kernel, in clusters of `cluster` blocks along x.
template <typename Params>
void launch_overlapping(void (*kernel)(Params), dim3 grid, int threads, size_t shared_bytes,
                        cudaStream_t stream, const Params& params, unsigned cluster = 1) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster, 1, 1};
  const cudaLaunchConfig_t config{.gridDim = grid,
                                  .blockDim = dim3(threads),
                                  .dynamicSmemBytes = shared_bytes,
                                  .stream = stream,
                                  .attrs = attributes,
                                  .numAttrs = !PERIGEE_SM90 ? 0u
                                              : cluster > 1 ? 2u
                                                            : 1u};
  cuda_check(cudaLaunchKernelEx(&config, kernel, params), "cudaLaunchKernelEx");
}

}  // namespace perigee::cuda
