#include "ops/cuda/device_memory.h"

#include <algorithm>

#include "ops/cuda/cuda_check.h"

namespace perigee::cuda {

DeviceMemory::DeviceMemory() {
  cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

DeviceMemory::~DeviceMemory() {
  descriptors_ = {};
  cudaStreamDestroy(stream_);
}

void DeviceMemory::wait() { cuda_check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

std::byte* DeviceMemory::allocate(int64_t bytes) {
  ++generation_;
  void* at = nullptr;
  const size_t size = static_cast<size_t>(std::max<int64_t>(1, bytes));
  cuda_check(cudaMalloc(&at, size), "cudaMalloc");
  cuda_check(cudaMemsetAsync(at, 0, size, stream_), "cudaMemsetAsync");
  return static_cast<std::byte*>(at);
}

void DeviceMemory::release(std::byte* at) noexcept {
  ++generation_;
  cudaFree(at);  // waits for the device
}

void DeviceMemory::copy(std::span<const PieceCopy> pieces) {
  if (pieces.empty()) return;
  if (pieces.size() == 1 && pieces[0].count == 1) {
    cuda_check(cudaMemcpyAsync(pieces[0].to, pieces[0].from, static_cast<size_t>(pieces[0].bytes),
                               cudaMemcpyDeviceToDevice, stream_),
               "cudaMemcpyAsync on the device");
    return;
  }
  const std::lock_guard lock(mutex_);
  const int64_t bytes = static_cast<int64_t>(pieces.size_bytes());
  if (descriptors_.bytes() < bytes) descriptors_ = MemoryBlock(*this, bytes);
  upload(descriptors_.data(), pieces.data(), bytes);
  launch_copy_pieces(descriptors_.as<PieceCopy>(), static_cast<int>(pieces.size()), stream_);
}

void DeviceMemory::fill(void* at, uint8_t byte, int64_t bytes) {
  if (bytes == 0) return;
  cuda_check(cudaMemsetAsync(at, byte, static_cast<size_t>(bytes), stream_), "cudaMemsetAsync");
}

void DeviceMemory::upload(void* to, const void* host, int64_t bytes) {
  cuda_check(cudaMemcpyAsync(to, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
             "cudaMemcpyAsync to the device");
  wait();
}

void DeviceMemory::download(void* host, const void* from, int64_t bytes) {
  cuda_check(cudaMemcpyAsync(host, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
             "cudaMemcpyAsync to the host");
  wait();
}

}  // namespace perigee::cuda
