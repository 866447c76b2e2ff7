// One thread an input: the batteries of codec_battery.h on the device.
#include "codec_battery.h"
#include "ops/cuda/device_array.h"
#include "ops/elementary.h"

namespace perigee {
namespace {

constexpr int kThreads = 128;  // divides every count of inputs

__global__ void run_scalar(ScalarResult* out) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  out[i] = scalar_battery(i);
}

__global__ void run_block(BlockResult* out) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  out[i] = block_battery(i);
}

__global__ void run_record(RecordResult* out) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  record_battery(i, out[i]);
}

__global__ void run_exp(uint32_t* out) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  out[i] = std::bit_cast<uint32_t>(cuda::exp(exp_input(i)));
}

template <typename Result>
std::vector<Result> run(void (*kernel)(Result*), int inputs) {
  cuda::DeviceArray<Result> out(inputs);
  cuda::cuda_check(cudaMemset(out.data(), 0, inputs * sizeof(Result)), "cudaMemset");
  kernel<<<inputs / kThreads, kThreads>>>(out.data());
  cuda::cuda_check(cudaGetLastError(), "launching a codec battery");
  return out.to_host();
}

}  // namespace

std::vector<ScalarResult> scalar_battery_on_device() { return run(run_scalar, kScalarInputs); }
std::vector<BlockResult> block_battery_on_device() { return run(run_block, kBlockInputs); }
std::vector<RecordResult> record_battery_on_device() { return run(run_record, kRecordInputs); }
std::vector<uint32_t> exp_on_device() { return run(run_exp, kExpInputs); }

}  // namespace perigee
