// DeviceMemory: the memory of one GPU, in the order of one stream, which is also that of its backend's
// stages.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <mutex>

#include "base/memory.h"

namespace perigee::cuda {

class DeviceMemory final : public Memory {
 public:
  // Takes the current device. Throws Error{kUnsupported} when there is none.
  DeviceMemory();
  ~DeviceMemory() override;
  DeviceMemory(const DeviceMemory&) = delete;

  cudaStream_t stream() const { return stream_; }
  // Changes whenever memory is allocated or given back: what was recorded before may point anywhere.
  int64_t generation() const { return generation_; }
  // Waits for everything enqueued so far; a failure of any of it is reported here.
  void wait();

  bool on_host() const override { return false; }
  std::byte* allocate(int64_t bytes) override;
  void release(std::byte* at) noexcept override;
  using Memory::copy;
  void copy(std::span<const PieceCopy> pieces) override;
  void fill(void* at, uint8_t byte, int64_t bytes) override;
  void upload(void* to, const void* host, int64_t bytes) override;
  void download(void* host, const void* from, int64_t bytes) override;

 private:
  cudaStream_t stream_ = nullptr;
  std::atomic<int64_t> generation_ = 0;
  std::mutex mutex_;         // of what follows
  MemoryBlock descriptors_;  // device copies of a list of pieces
};

// One kernel for all pieces; `pieces` lies on the device.
void launch_copy_pieces(const PieceCopy* pieces, int count, cudaStream_t stream);

}  // namespace perigee::cuda
