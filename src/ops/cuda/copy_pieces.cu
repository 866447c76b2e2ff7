// DeviceMemory::copy for many pieces: one block each, bytes by threads.
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/device_memory.h"

namespace perigee::cuda {
namespace {

__global__ void copy_pieces_kernel(const PieceCopy* pieces) {
  const PieceCopy p = pieces[blockIdx.x];
  for (int64_t i = threadIdx.x; i < p.count * p.bytes; i += blockDim.x) {
    const int64_t piece = i / p.bytes, byte = i % p.bytes;
    static_cast<uint8_t*>(p.to)[piece * p.to_stride + byte] =
        static_cast<const uint8_t*>(p.from)[piece * p.from_stride + byte];
  }
}

}  // namespace

void launch_copy_pieces(const PieceCopy* pieces, int count, cudaStream_t stream) {
  copy_pieces_kernel<<<count, 256, 0, stream>>>(pieces);
  cuda_check(cudaGetLastError(), "launching copy_pieces");
}

}  // namespace perigee::cuda
