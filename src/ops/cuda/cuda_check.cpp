// The error a failed CUDA call becomes.
#include "ops/cuda/cuda_check.h"

#include "base/error.h"

namespace perigee::cuda {
namespace {

const char* remedy(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return "free memory on the device or ask for less";
    case cudaErrorNoDevice:
      return "run on a machine with an NVIDIA GPU";
    case cudaErrorInsufficientDriver:
      return "install a driver as new as the CUDA toolkit of this build";
    case cudaErrorNoKernelImageForDevice:
      return "build with -DPERIGEE_CUDA_ARCH set to this GPU's";
    default:
      return "run under compute-sanitizer to find the place";
  }
}

}  // namespace

void cuda_check(cudaError_t status, const char* call, std::source_location at) {
  if (status == cudaSuccess) return;
  const bool machine = status == cudaErrorMemoryAllocation || status == cudaErrorNoDevice ||
                       status == cudaErrorInsufficientDriver || status == cudaErrorNoKernelImageForDevice;
  fail(machine ? ErrorCode::kUnsupported : ErrorCode::kInternal, "{} at {}:{} failed with {} ({}); {}", call,
       at.file_name(), at.line(), cudaGetErrorName(status), cudaGetErrorString(status), remedy(status));
}

int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace perigee::cuda
