// How fast attn_res_mix runs, as a share of the bandwidth of a large copy measured in the same run:
// gpu_bench COMMIT DATE [FILE] prints one row a batch size and writes the same as JSON.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "ops/cuda/backend.h"
#include "ops/cuda/device_array.h"

namespace perigee::cuda {
namespace {

constexpr int kHidden = 7168, kBanks = 8;
constexpr int kRepeats = 15;                   // timings, of which the median counts
constexpr size_t kBeyondL2 = size_t{1} << 29;  // bytes that the inputs in rotation span at least
constexpr int kMostLaunches = 1024;

struct Row {
  int rows, launches;
  double microseconds, spread, gigabytes_per_second;
};

// Milliseconds of each of kRepeats calls of `work` on `stream`, sorted; two calls warm up.
template <typename Work>
std::vector<double> time(cudaStream_t stream, Work work) {
  cudaEvent_t start, stop;
  cuda_check(cudaEventCreate(&start), "cudaEventCreate");
  cuda_check(cudaEventCreate(&stop), "cudaEventCreate");
  std::vector<double> milliseconds;
  for (int i = -2; i < kRepeats; ++i) {
    cuda_check(cudaEventRecord(start, stream), "cudaEventRecord");
    work();
    cuda_check(cudaEventRecord(stop, stream), "cudaEventRecord");
    cuda_check(cudaEventSynchronize(stop), "cudaEventSynchronize");
    float elapsed;
    cuda_check(cudaEventElapsedTime(&elapsed, start, stop), "cudaEventElapsedTime");
    if (i >= 0) milliseconds.push_back(elapsed);
  }
  cuda_check(cudaEventDestroy(start), "cudaEventDestroy");
  cuda_check(cudaEventDestroy(stop), "cudaEventDestroy");
  std::sort(milliseconds.begin(), milliseconds.end());
  return milliseconds;
}

// Random values everywhere: `size` of them, repeating every few million.
DeviceArray<bf16> random_array(size_t size) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<bf16> block(std::min<size_t>(size, 5'000'011));
  for (bf16& x : block) x = float_to_bf16(normal(random));
  DeviceArray<bf16> out(size);
  for (size_t at = 0; at < size; at += block.size()) {
    const size_t count = std::min(block.size(), size - at);
    cuda_check(cudaMemcpy(out.data() + at, block.data(), count * sizeof(bf16), cudaMemcpyHostToDevice),
               "cudaMemcpy");
  }
  return out;
}

// Bytes read and written in a copy of 2 GiB, GB/s.
double copy_bandwidth(cudaStream_t stream) {
  const DeviceArray<bf16> from = random_array(size_t{1} << 30);
  DeviceArray<bf16> to(from.size());
  const size_t bytes = from.size() * sizeof(bf16);
  const std::vector<double> ms = time(stream, [&] {
    cuda_check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream),
               "cudaMemcpyAsync");
  });
  return 2.0 * static_cast<double>(bytes) / ms[kRepeats / 2] / 1e6;
}

// One graph of launches that walk through input sets larger than L2 together; the time of one launch.
Row measure(int rows, CudaBackend& backend) {
  const cudaStream_t stream = backend.memory().stream();
  const size_t tensor = size_t{1} * rows * kHidden;           // elements
  const size_t bytes = (kBanks + 2) * tensor * sizeof(bf16);  // each source read, out written
  const int sets = static_cast<int>(std::clamp<size_t>(kBeyondL2 / bytes, 2, kMostLaunches));
  const DeviceArray<bf16> sources = random_array(sets * (kBanks + 1) * tensor);
  DeviceArray<bf16> out(sets * tensor);
  std::vector<float> weights(kHidden);
  for (int d = 0; d < kHidden; ++d) weights[d] = 0.02f * (d % 17 - 8);
  const DeviceArray<float> score{std::span<const float>(weights)}, norm{std::span<const float>(weights)};

  cudaGraph_t graph;
  cudaGraphExec_t replay;
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  for (int set = 0; set < sets; ++set) {
    const bf16* first = sources.data() + set * (kBanks + 1) * tensor;
    std::vector<const bf16*> banks;
    for (int j = 0; j < kBanks; ++j) banks.push_back(first + j * tensor);
    backend.attn_res_mix({.stream = first + kBanks * tensor,
                          .banks = banks,
                          .score = score.data(),
                          .norm = norm.data(),
                          .eps = 1e-5f,
                          .out = out.data() + set * tensor,
                          .rows = rows,
                          .hidden = kHidden});
  }
  cuda_check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cuda_check(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
  const std::vector<double> ms =
      time(stream, [&] { cuda_check(cudaGraphLaunch(replay, stream), "cudaGraphLaunch"); });
  cuda_check(cudaGraphExecDestroy(replay), "cudaGraphExecDestroy");
  cuda_check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  const double median = ms[kRepeats / 2] / sets;
  return {.rows = rows,
          .launches = sets,
          .microseconds = 1e3 * median,
          .spread = (ms[kRepeats * 3 / 4] - ms[kRepeats / 4]) / ms[kRepeats / 2],
          .gigabytes_per_second = static_cast<double>(bytes) / median / 1e6};
}

int run(const std::string& commit, const std::string& date, const char* file) {
  CudaBackend backend;
  const cudaStream_t stream = backend.memory().stream();
  cudaDeviceProp gpu;
  cuda_check(cudaGetDeviceProperties(&gpu, 0), "cudaGetDeviceProperties");
  int driver = 0;
  cuda_check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  const double copy = copy_bandwidth(stream);
  std::string rows;
  fmt::print("{}, copy {:.0f} GB/s; attn_res_mix, hidden {}, {} banks\n", gpu.name, copy, kHidden, kBanks);
  fmt::print("{:>6} {:>10} {:>8} {:>8} {:>8}\n", "rows", "us", "spread", "GB/s", "of copy");
  for (int count : {1, 8, 64, 512, 8192}) {
    const Row r = measure(count, backend);
    const double share = 100.0 * r.gigabytes_per_second / copy;
    fmt::print("{:>6} {:>10.2f} {:>7.1f}% {:>8.0f} {:>7.1f}%\n", r.rows, r.microseconds, 100.0 * r.spread,
               r.gigabytes_per_second, share);
    rows += fmt::format(
        "{}    {{\"rows\": {}, \"hidden\": {}, \"banks\": {}, \"launches_per_graph\": {}, \"us\": {:.3f}, "
        "\"interquartile_spread\": {:.4f}, \"gb_per_s\": {:.1f}, \"percent_of_copy\": {:.1f}}}",
        rows.empty() ? "" : ",\n", r.rows, kHidden, kBanks, r.launches, r.microseconds, r.spread,
        r.gigabytes_per_second, share);
  }
  if (file == nullptr) return 0;
  std::ofstream out(file);
  out << fmt::format(
      "{{\n  \"benchmark\": \"attn_res_mix\",\n  \"date\": \"{}\",\n  \"commit\": \"{}\",\n"
      "  \"hardware\": {{\"gpu\": \"{}\", \"multiprocessors\": {}, \"l2_bytes\": {}, \"cuda_driver\": {}, "
      "\"cuda_runtime\": {}}},\n"
      "  \"method\": \"graph replays over inputs larger than L2, median of {}, bytes: every source read and "
      "out written once; copy: 2 GiB device to device, bytes read and written\",\n"
      "  \"copy_gb_per_s\": {:.1f},\n  \"rows\": [\n{}\n  ]\n}}\n",
      date, commit, gpu.name, gpu.multiProcessorCount, gpu.l2CacheSize, driver, CUDART_VERSION, kRepeats,
      copy, rows);
  return out.flush() ? 0 : 1;
}

}  // namespace
}  // namespace perigee::cuda

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    std::cerr << "usage: gpu_bench COMMIT DATE [FILE]\n";
    return 2;
  }
  try {
    return perigee::cuda::run(argv[1], argv[2], argc == 4 ? argv[3] : nullptr);
  } catch (const std::exception& e) {
    std::cerr << "gpu_bench: " << e.what() << "\n";
    return 1;
  }
}
