// DeviceMemory::copy for many pieces: one block each, bytes by threads. The pieces travel with the launch, so
// that nobody waits for a copy of the list.
#include <algorithm>

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/device_memory.h"

namespace perigee::cuda {
namespace {

constexpr size_t kMostPieces = 64;  // of one launch: its parameters are 4 KB at most
struct Pieces {
  PieceCopy piece[kMostPieces];
};

__global__ void copy_pieces_kernel(const __grid_constant__ Pieces pieces) {
  const PieceCopy& p = pieces.piece[blockIdx.x];
  for (int64_t i = threadIdx.x; i < p.count * p.bytes; i += blockDim.x) {
    const int64_t piece = i / p.bytes, byte = i % p.bytes;
    static_cast<uint8_t*>(p.to)[piece * p.to_stride + byte] =
        static_cast<const uint8_t*>(p.from)[piece * p.from_stride + byte];
  }
}

}  // namespace

void launch_copy_pieces(std::span<const PieceCopy> pieces, cudaStream_t stream) {
  for (size_t first = 0; first < pieces.size(); first += kMostPieces) {
    const auto some = pieces.subspan(first, std::min(kMostPieces, pieces.size() - first));
    Pieces list;
    std::copy(some.begin(), some.end(), list.piece);
    copy_pieces_kernel<<<static_cast<unsigned>(some.size()), 256, 0, stream>>>(list);
    cuda_check(cudaGetLastError(), "launching copy_pieces");
  }
}

}  // namespace perigee::cuda
