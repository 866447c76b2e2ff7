#include "ops/cuda/device_memory.h"

#include <algorithm>
#include <cstring>

#include "ops/cuda/cuda_check.h"

namespace perigee::cuda {

std::byte* PageLockedMemory::allocate(int64_t bytes) {
  void* at = nullptr;
  const size_t size = static_cast<size_t>(std::max<int64_t>(1, bytes));
  cuda_check(cudaMallocHost(&at, size), "cudaMallocHost");
  std::memset(at, 0, size);
  return static_cast<std::byte*>(at);
}

DeviceMemory::DeviceMemory() {
  cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  for (cudaEvent_t& event : events_)
    cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

DeviceMemory::~DeviceMemory() {
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
  cudaStreamDestroy(stream_);
}

int64_t DeviceMemory::mark() {
  ++marks_;
  cuda_check(cudaEventRecord(events_[marks_ % std::ssize(events_)], stream_), "cudaEventRecord");
  return marks_;
}

// An event that has been taken for a later mark is waited for as well: it comes after.
void DeviceMemory::wait(int64_t mark) {
  cuda_check(cudaEventSynchronize(events_[mark % std::ssize(events_)]), "cudaEventSynchronize");
}

void DeviceMemory::wait_for_stream() { cuda_check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

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
                               cudaMemcpyDefault, stream_),
               "cudaMemcpyAsync of a piece");
    return;
  }
  launch_copy_pieces(pieces, stream_);
}

void DeviceMemory::fill(void* at, uint8_t byte, int64_t bytes) {
  if (bytes == 0) return;
  cuda_check(cudaMemsetAsync(at, byte, static_cast<size_t>(bytes), stream_), "cudaMemsetAsync");
}

void DeviceMemory::upload(void* to, const void* host, int64_t bytes) {
  cuda_check(cudaMemcpyAsync(to, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
             "cudaMemcpyAsync to the device");
  wait_for_stream();
}

void DeviceMemory::download(void* host, const void* from, int64_t bytes) {
  cuda_check(cudaMemcpyAsync(host, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
             "cudaMemcpyAsync to the host");
  wait_for_stream();
}

}  // namespace perigee::cuda
