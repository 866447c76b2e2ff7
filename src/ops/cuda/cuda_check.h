// Turns the status of a CUDA call into perigee::Error: the message names the call, what CUDA answered, the
// place, and what to do about it. No formatting here: nvcc cannot compile fmt's checked format strings.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>

namespace perigee::cuda {

// `call` is the function called, or the kernel launched.
void cuda_check(cudaError_t status, const char* call,
                std::source_location at = std::source_location::current());

// Of the device in use.
int device_attribute(cudaDeviceAttr attribute);

}  // namespace perigee::cuda
