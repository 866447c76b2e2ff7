// What the benches of stages share: inputs that outlast the cache, timings of graphs, rows with limits.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "ops/cuda/backend.h"
#include "ops/cuda/device_array.h"

namespace perigee::cuda::bench {

// One figure. Zero stands for "none" in limit, target and peer_value; all are in `unit`.
struct Row {
  std::string name;
  double value = 0;
  std::string unit = "us";
  double limit = 0;  // what the hardware allows: bytes at the copy's bandwidth, or operations at kBf16Tflops
  double target = 0;
  std::string peer = "";
  double peer_value = 0;
  std::string bound_by = "";  // why a missed target is missed, as measured
};

constexpr double kBf16Tflops = 790;  // a large bf16 product on an H200 (the ceiling)

class Bench {
 public:
  explicit Bench(bool print);
  CudaBackend& backend() { return backend_; }
  cudaStream_t stream() { return backend_.memory().stream(); }

  // Microseconds of one of `sets` calls of launch(set), which are captured into one graph and replayed; the
  // median of several replays. One plain round before fills workspaces. Sets should span beyond_l2 bytes.
  double microseconds(int sets, const std::function<void(int)>& launch);
  // The same of reading `bytes` once with nothing else to do.
  double read_microseconds(int64_t bytes);
  static int sets_beyond_l2(int64_t bytes_of_a_set, int most = 64);

  // Microseconds that this many bytes take at a large copy's bandwidth, bytes read and written.
  double limit_of_bytes(double bytes) const { return bytes / copy_gb_per_s_ / 1e3; }
  static double limit_of_flops(double flops) { return flops / kBf16Tflops / 1e6; }

  void add(const Row& row);  // prints it too, if asked to
  double copy_gb_per_s() const { return copy_gb_per_s_; }
  std::string json(const std::string& commit, const std::string& date) const;

 private:
  CudaBackend backend_;
  bool print_;
  double copy_gb_per_s_ = 0;
  std::vector<Row> rows_;
};

// `count` values of draw(random), of which a few million are drawn and then repeated.
template <typename T, typename Draw>
DeviceArray<T> repeated(int64_t count, const Draw& draw) {
  std::mt19937 random(1);
  std::vector<T> block(static_cast<size_t>(std::min<int64_t>(count, 5'000'011)));
  for (T& x : block) x = draw(random);
  DeviceArray<T> out(static_cast<size_t>(count));
  for (size_t at = 0; at < out.size(); at += block.size()) {
    const size_t some = std::min(block.size(), out.size() - at);
    cuda_check(cudaMemcpy(out.data() + at, block.data(), some * sizeof(T), cudaMemcpyHostToDevice),
               "cudaMemcpy");
  }
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return out;
}
DeviceArray<bf16> random_bf16(int64_t count, float scale = 1.0f);
DeviceArray<float> random_floats(int64_t count, float scale = 1.0f, float shift = 0.0f);
DeviceArray<uint8_t> random_bytes(int64_t count, int least = 0, int most = 255);

void launch_read(const void* from, int64_t bytes, void* sink, cudaStream_t stream);

// The benches, one file each.
void attend(Bench&);
void attn_res_mix(Bench&);
void products(Bench&);
void experts(Bench&);
void index(Bench&);
void kda(Bench&);

}  // namespace perigee::cuda::bench
