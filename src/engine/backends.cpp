#include "engine/backends.h"

#include "base/error.h"
#include "ops/cpu/fast/backend.h"
#ifdef PERIGEE_HAVE_CUDA
#include "ops/cuda/backend.h"
#include "ops/cuda/cuda_check.h"
#endif

namespace perigee {

std::unique_ptr<Backend> make_cpu_backend(const std::string& kernels, int threads) {
  const cpu::Kernels* fast = kernels == "auto" ? cpu::best_kernels() : cpu::find_kernels(kernels);
  if (fast) return std::make_unique<cpu::FastBackend>(threads, *fast);
  if (kernels != "auto" && kernels != "plain")
    fail(ErrorCode::kUsage, "--cpu-kernels {}: this CPU cannot run them; try auto", kernels);
  return std::make_unique<cpu::PlainBackend>(threads);
}

#ifdef PERIGEE_HAVE_CUDA

namespace {
bool has_gpu() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}
}  // namespace

std::unique_ptr<Backend> make_backend(const std::string& device, const std::string& cpu_kernels, int threads,
                                      bool graphs) {
  const bool gpu = device != "cpu" && has_gpu();
  if (device == "cuda" && !gpu) {
    fail(ErrorCode::kUsage, "--device cuda: no NVIDIA GPU with a driver was found; use --device cpu or auto");
  }
  if (gpu) return std::make_unique<cuda::CudaBackend>(graphs);
  return make_cpu_backend(cpu_kernels, threads);
}

DeviceRoom device_room() {
  size_t free = 0, total = 0;
  cuda::cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return {.free = static_cast<int64_t>(free), .total = static_cast<int64_t>(total)};
}

#else

std::unique_ptr<Backend> make_backend(const std::string& device, const std::string& cpu_kernels, int threads,
                                      bool) {
  if (device == "cuda") {
    fail(ErrorCode::kUsage,
         "--device cuda: this build has no CUDA; build perigee where nvcc is on PATH, or use --device cpu");
  }
  return make_cpu_backend(cpu_kernels, threads);
}

DeviceRoom device_room() { return {}; }

#endif

}  // namespace perigee
