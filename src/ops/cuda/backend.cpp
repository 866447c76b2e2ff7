#include "ops/cuda/backend.h"

#include <fmt/format.h>

#include "base/error.h"
#include "ops/cuda/cuda_check.h"

namespace perigee::cuda {

namespace {

// The identity's name of the device: matrix instructions of different architectures round differently.
std::string architecture_of_device() {
  const int major = device_attribute(cudaDevAttrComputeCapabilityMajor),
            minor = device_attribute(cudaDevAttrComputeCapabilityMinor);
  if (major < 8) {
    fail(ErrorCode::kUnsupported,
         "this GPU has compute capability {}.{}, but the CUDA backend needs 8.0; use --device cpu", major,
         minor);
  }
  return fmt::format("sm_{}{}-v3", major, minor);
}

}  // namespace

CudaBackend::CudaBackend(bool graphs)
    : architecture_(architecture_of_device()),
      tables_(memory_),
      scratch_(memory_),
      recorder_(memory_, graphs) {}

bool CudaBackend::begin_step(const StepInputs& inputs) {
  tables_.begin(inputs);
  if (!recorder_.begin(inputs, tables_.bounds())) return false;
  for (const std::vector<KdaSlot>& layer : inputs.slots) {  // what kda_chunk does beside its kernels
    for (size_t s = 0; s < layer.size(); ++s) move_base(layer[s], inputs.sequences[s]);
  }
  return true;
}

void CudaBackend::end_step() { recorder_.end(); }

}  // namespace perigee::cuda
