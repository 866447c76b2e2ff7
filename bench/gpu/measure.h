// What the GPU benchmarks share: medians of graph replays, random inputs, and the rows they report.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "ops/cuda/backend.h"
#include "ops/cuda/device_array.h"

namespace perigee::cuda {

constexpr int kRepeats = 15;                   // timings, of which the median counts
constexpr size_t kBeyondL2 = size_t{1} << 29;  // bytes that the inputs in rotation span at least

// One line of a result file. A value of 0 in limit, target or peer_value: there is none.
struct Row {
  std::string name;
  double value = 0;
  std::string unit;
  double limit = 0, target = 0;
  std::string limit_by, peer;
  double peer_value = 0;
  double microseconds = 0, spread = 0;  // of one launch; interquartile range over median
};

struct Time {
  double microseconds, spread;  // median of one launch; interquartile range over median
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

// One graph of `sets` launches that walk through input sets larger than L2 together; the time of one. The
// first launch is made once outside the graph, so that workspaces are there.
template <typename Launch>
Time time_in_graph(cudaStream_t stream, int sets, Launch launch) {
  launch(0);
  cuda_check(cudaStreamSynchronize(stream), "warming up");
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  for (int set = 0; set < sets; ++set) launch(set);
  cuda_check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cuda_check(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
  const std::vector<double> ms =
      time(stream, [&] { cuda_check(cudaGraphLaunch(replay, stream), "cudaGraphLaunch"); });
  cuda_check(cudaGraphExecDestroy(replay), "cudaGraphExecDestroy");
  cuda_check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return {.microseconds = 1e3 * ms[kRepeats / 2] / sets,
          .spread = (ms[kRepeats * 3 / 4] - ms[kRepeats / 4]) / ms[kRepeats / 2]};
}

// `block` again and again.
template <typename T>
DeviceArray<T> repeated_array(size_t size, const std::vector<T>& block) {
  DeviceArray<T> out(size);
  for (size_t at = 0; at < size; at += block.size()) {
    const size_t count = std::min(block.size(), size - at);
    cuda_check(cudaMemcpy(out.data() + at, block.data(), count * sizeof(T), cudaMemcpyHostToDevice),
               "cudaMemcpy");
  }
  return out;
}

// Normal values everywhere, repeating every few million.
inline DeviceArray<bf16> random_array(size_t size) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<bf16> block(std::min<size_t>(size, 5'000'011));
  for (bf16& x : block) x = float_to_bf16(normal(random));
  return repeated_array(size, block);
}

// Bytes read and written in a copy of 2 GiB, GB/s.
inline double copy_bandwidth(cudaStream_t stream) {
  const DeviceArray<bf16> from = random_array(size_t{1} << 30);
  DeviceArray<bf16> to(from.size());
  const size_t bytes = from.size() * sizeof(bf16);
  const std::vector<double> ms = time(stream, [&] {
    cuda_check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream),
               "cudaMemcpyAsync");
  });
  return 2.0 * static_cast<double>(bytes) / ms[kRepeats / 2] / 1e6;
}

// The suites; `copy` is the bandwidth of a large copy, GB/s.
std::vector<Row> measure_attn_res_mix(CudaBackend& backend, double copy);
std::vector<Row> measure_attend(CudaBackend& backend, double copy);
std::vector<Row> measure_index(CudaBackend& backend, double copy);

}  // namespace perigee::cuda
