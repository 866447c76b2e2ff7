// DeviceMemory: the memory of one GPU, in the order of one stream, which is also that of its backend's
// stages. PageLockedMemory: memory of the host that the GPU reads and writes.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>

#include "base/memory.h"

namespace perigee::cuda {

class PageLockedMemory : public Memory {
 public:
  bool on_host() const override { return true; }
  std::byte* allocate(int64_t bytes) override;
  void release(std::byte* at) noexcept override { cudaFreeHost(at); }
  using Memory::copy;
  void copy(std::span<const PieceCopy> pieces) override { host_memory().copy(pieces); }
  void fill(void* at, uint8_t byte, int64_t bytes) override { host_memory().fill(at, byte, bytes); }
  void upload(void* to, const void* host, int64_t bytes) override { host_memory().upload(to, host, bytes); }
  void download(void* host, const void* from, int64_t bytes) override {
    host_memory().download(host, from, bytes);
  }
};

class DeviceMemory final : public Memory {
 public:
  // Takes the current device. Throws Error{kUnsupported} when there is none.
  DeviceMemory();
  ~DeviceMemory() override;
  DeviceMemory(const DeviceMemory&) = delete;

  cudaStream_t stream() const { return stream_; }
  // Changes whenever memory is allocated or given back: what was recorded before may point anywhere.
  int64_t generation() const { return generation_; }
  bool on_host() const override { return false; }
  std::byte* allocate(int64_t bytes) override;
  void release(std::byte* at) noexcept override;
  using Memory::copy;
  void copy(std::span<const PieceCopy> pieces) override;
  void fill(void* at, uint8_t byte, int64_t bytes) override;
  void upload(void* to, const void* host, int64_t bytes) override;
  void download(void* host, const void* from, int64_t bytes) override;
  PageLockedMemory& staging() override { return staging_; }
  int64_t mark() override;
  using Memory::wait;
  void wait(int64_t mark) override;

 private:
  void wait_for_stream();

  cudaStream_t stream_ = nullptr;
  std::atomic<int64_t> generation_ = 0;
  PageLockedMemory staging_;
  std::array<cudaEvent_t, 8> events_ = {};  // of the last marks, in turn
  int64_t marks_ = 0;
};

void launch_copy_pieces(std::span<const PieceCopy> pieces, cudaStream_t stream);

}  // namespace perigee::cuda
