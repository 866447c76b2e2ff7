// Which backend a run gets, by the names that users give.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ops/ops.h"

namespace perigee {

// The backend of the CPU kernels of that name: "plain", "avx2", "avx512", or "auto" for the fastest. Throws
// Error{kUsage} naming --cpu-kernels when this CPU cannot run them.
std::unique_ptr<Backend> make_cpu_backend(const std::string& kernels, int threads);

// "cpu", "cuda", or "auto" for a GPU where there is one and this build can use it. `graphs`: whether a GPU's
// steps are replayed as CUDA graphs. Throws Error{kUsage} naming --device when this build has no CUDA or the
// machine no GPU, Error{kUnsupported} when the GPU is too old.
std::unique_ptr<Backend> make_backend(const std::string& device, const std::string& cpu_kernels, int threads,
                                      bool graphs = true);

// Bytes of a GPU's memory, those that nobody has taken among them.
struct DeviceRoom {
  int64_t free = 0, total = 0;
};
DeviceRoom device_room();

}  // namespace perigee
