// A kernel that only reads: the ceiling of what reads weights once.
#include "bench/gpu/harness.h"

namespace perigee::cuda::bench {
namespace {

__global__ void __launch_bounds__(512) read_kernel(const uint4* from, int64_t count, uint4* sink) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  uint32_t mixed = 0;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < count; i += 4 * stride) {
    const uint4 a = __ldcs(from + i), b = __ldcs(from + i + stride), c = __ldcs(from + i + 2 * stride),
                d = __ldcs(from + i + 3 * stride);
    mixed ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  for (; i < count; i += stride) mixed ^= from[i].x ^ from[i].y ^ from[i].z ^ from[i].w;
  if (mixed == 0x12345678u) sink[0].x = mixed;  // almost never: only so that the reads are not left out
}

}  // namespace

void launch_read(const void* from, int64_t bytes, void* sink, cudaStream_t stream) {
  const int64_t count = bytes / 16;
  const int blocks = static_cast<int>(std::min<int64_t>(132 * 4, (count + 511) / 512));
  read_kernel<<<blocks, 512, 0, stream>>>(static_cast<const uint4*>(from), count, static_cast<uint4*>(sink));
  cuda_check(cudaGetLastError(), "launching read");
}

}  // namespace perigee::cuda::bench
