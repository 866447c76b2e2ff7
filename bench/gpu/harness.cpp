#include "bench/gpu/harness.h"

#include <fmt/format.h>

#include <algorithm>

namespace perigee::cuda::bench {

namespace {

constexpr int kRepeats = 15;
constexpr int64_t kBeyondL2 = int64_t{1} << 29;

// Percent of the limit: times are above it, rates below.
double share(const Row& r) {
  if (r.limit == 0) return 0;
  return 100 * (r.unit.ends_with("/s") ? r.value / r.limit : r.limit / r.value);
}

// Milliseconds of each of kRepeats calls, sorted; two calls warm up.
std::vector<double> time(cudaStream_t stream, const std::function<void()>& work) {
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

}  // namespace

DeviceArray<bf16> random_bf16(int64_t count, float scale) {
  std::normal_distribution<float> normal;
  return repeated<bf16>(count, [&](std::mt19937& r) { return float_to_bf16(scale * normal(r)); });
}
DeviceArray<float> random_floats(int64_t count, float scale, float shift) {
  std::normal_distribution<float> normal;
  return repeated<float>(count, [&](std::mt19937& r) { return shift + scale * normal(r); });
}
DeviceArray<uint8_t> random_bytes(int64_t count, int least, int most) {
  std::uniform_int_distribution<int> byte(least, most);
  return repeated<uint8_t>(count, [&](std::mt19937& r) { return static_cast<uint8_t>(byte(r)); });
}

Bench::Bench(bool print) : print_(print) {
  const DeviceArray<bf16> from = random_bf16(int64_t{1} << 30);
  DeviceArray<bf16> to(from.size());
  const size_t bytes = from.size() * sizeof(bf16);
  const std::vector<double> ms = time(stream(), [&] {
    cuda_check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream()),
               "cudaMemcpyAsync");
  });
  copy_gb_per_s_ = 2.0 * static_cast<double>(bytes) / ms[kRepeats / 2] / 1e6;
  if (print_)
    fmt::print("copy {:.0f} GB/s\n{:<28} {:>10} {:<7} {:>9} {:>6} {:>9} {:>9}\n", copy_gb_per_s_, "row",
               "value", "unit", "limit", "of it", "target", "public");
}

int Bench::sets_beyond_l2(int64_t bytes, int most) {
  return static_cast<int>(std::clamp<int64_t>(kBeyondL2 / std::max<int64_t>(1, bytes) + 1, 2, most));
}

double Bench::microseconds(int sets, const std::function<void(int)>& launch) {
  for (int set = 0; set < sets; ++set) launch(set);
  backend_.memory().wait();
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  cuda_check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  for (int set = 0; set < sets; ++set) launch(set);
  cuda_check(cudaStreamEndCapture(stream(), &graph), "cudaStreamEndCapture");
  cuda_check(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
  const std::vector<double> ms =
      time(stream(), [&] { cuda_check(cudaGraphLaunch(replay, stream()), "cudaGraphLaunch"); });
  cuda_check(cudaGraphExecDestroy(replay), "cudaGraphExecDestroy");
  cuda_check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return 1e3 * ms[kRepeats / 2] / sets;
}

double Bench::read_microseconds(int64_t bytes) {
  const int sets = sets_beyond_l2(bytes);
  const DeviceArray<uint8_t> memory = random_bytes(sets * bytes);
  DeviceArray<uint8_t> sink(64);
  return microseconds(
      sets, [&](int set) { launch_read(memory.data() + set * bytes, bytes, sink.data(), stream()); });
}

void Bench::add(const Row& r) {
  if (print_)
    fmt::print("{:<28} {:>10.2f} {:<7} {:>9.2f} {:>5.0f}% {:>9.2f} {:>9.2f}  {}\n", r.name, r.value, r.unit,
               r.limit, share(r), r.target, r.peer_value, r.bound_by);
  rows_.push_back(r);
}

std::string Bench::json(const std::string& commit, const std::string& date) const {
  cudaDeviceProp gpu;
  cuda_check(cudaGetDeviceProperties(&gpu, 0), "cudaGetDeviceProperties");
  int driver = 0;
  cuda_check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  std::string rows;
  for (const Row& r : rows_) {
    rows += fmt::format(
        "{}    {{\"name\": \"{}\", \"value\": {:.3f}, \"unit\": \"{}\", \"limit\": {:.3f}, \"target\": "
        "{:.3f}, "
        "\"peer\": \"{}\", \"peer_value\": {:.3f}, \"bound_by\": \"{}\"}}",
        rows.empty() ? "" : ",\n", r.name, r.value, r.unit, r.limit, r.target, r.peer, r.peer_value,
        r.bound_by);
  }
  return fmt::format(
      "{{\n  \"benchmark\": \"gpu stages\",\n  \"date\": \"{}\",\n  \"commit\": \"{}\",\n"
      "  \"hardware\": {{\"gpu\": \"{}\", \"multiprocessors\": {}, \"l2_bytes\": {}, \"cuda_driver\": {}, "
      "\"cuda_runtime\": {}}},\n"
      "  \"method\": \"graph replays over inputs larger than L2, median of {}; limits: bytes at the copy's "
      "bandwidth, "
      "operations at {:.0f} TFLOP/s; peers: public figures of other H200s\",\n"
      "  \"copy_gb_per_s\": {:.1f},\n  \"rows\": [\n{}\n  ]\n}}\n",
      date, commit, gpu.name, gpu.multiProcessorCount, gpu.l2CacheSize, driver, CUDART_VERSION, kRepeats,
      kBf16Tflops, copy_gb_per_s_, rows);
}

}  // namespace perigee::cuda::bench
