#include "ops/cuda/backend.h"

#include <fmt/format.h>

#include "base/error.h"
#include "ops/cuda/cuda_check.h"

namespace perigee::cuda {

namespace {

// The identity's name of the device: matrix instructions of different architectures round differently.
std::string architecture_of_device() {
  int device = 0, major = 0, minor = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
             "cudaDeviceGetAttribute");
  cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
             "cudaDeviceGetAttribute");
  if (major < 8) {
    fail(ErrorCode::kUnsupported,
         "this GPU has compute capability {}.{}, but the CUDA backend needs 8.0; use --device cpu", major,
         minor);
  }
  return fmt::format("sm_{}{}-v1", major, minor);
}

}  // namespace

CudaBackend::CudaBackend()
    : architecture_(architecture_of_device()), tables_(memory_), scratch_(memory_) {}

}  // namespace perigee::cuda
