// DeviceArray<T>: owns an array in device memory; copies to and from the host wait for the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "ops/cuda/cuda_check.h"

namespace perigee::cuda {

template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(size_t size) : size_(size) {
    void* p = nullptr;
    cuda_check(cudaMalloc(&p, size * sizeof(T)), "cudaMalloc");
    data_.reset(static_cast<T*>(p));
  }
  explicit DeviceArray(std::span<const T> host) : DeviceArray(host.size()) {
    cuda_check(cudaMemcpy(data(), host.data(), host.size_bytes(), cudaMemcpyHostToDevice),
               "cudaMemcpy to the device");
    // The call may return before the copy is done, and streams of backends do not wait for it.
    cuda_check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  size_t size() const { return size_; }
  std::vector<T> to_host() const {
    std::vector<T> host(size_);
    cuda_check(cudaMemcpy(host.data(), data(), size_ * sizeof(T), cudaMemcpyDeviceToHost),
               "cudaMemcpy to the host");
    return host;
  }

 private:
  struct Free {
    void operator()(T* p) const { cudaFree(p); }
  };
  std::unique_ptr<T[], Free> data_;
  size_t size_ = 0;
};

}  // namespace perigee::cuda
