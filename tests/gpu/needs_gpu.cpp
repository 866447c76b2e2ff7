// Skips every test of the binary where there is no CUDA device, with one line that says so.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace perigee {
namespace {

class NeedsGpu : public testing::Environment {
  void SetUp() override {
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no CUDA device (" << cudaGetErrorName(status)
                   << "): docs/howto/run-on-a-gpu-machine.md says how to run these tests on another machine";
    }
  }
};

const auto* const needs_gpu = testing::AddGlobalTestEnvironment(new NeedsGpu);

}  // namespace
}  // namespace perigee
