// Kernels on one GPU: gpu_bench COMMIT DATE [FILE [SUITE…]] prints one row a case and writes the same as JSON
// (FILE - : prints alone). Suites: attn_res_mix, attend, index.
#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <string>
#include <utility>

#include "measure.h"

namespace perigee::cuda {
namespace {

std::string number_or_null(double x) { return x == 0 ? "null" : fmt::format("{:.4g}", x); }
std::string text_or_null(const std::string& x) { return x.empty() ? "null" : fmt::format("\"{}\"", x); }

constexpr std::pair<const char*, std::vector<Row> (*)(CudaBackend&, double)> kSuites[] = {
    {"attn_res_mix", measure_attn_res_mix}, {"attend", measure_attend}, {"index", measure_index}};

int run(const std::string& commit, const std::string& date, const std::string& file,
        const std::vector<std::string>& chosen) {
  CudaBackend backend;
  cudaDeviceProp gpu;
  cuda_check(cudaGetDeviceProperties(&gpu, 0), "cudaGetDeviceProperties");
  int driver = 0;
  cuda_check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  const double copy = copy_bandwidth(backend.memory().stream());
  std::string rows;
  fmt::print("{}, copy {:.0f} GB/s\n{:<64} {:>10} {:>8} {:>8} {:>8} {:>8} {:>7}\n", gpu.name, copy, "name",
             "value", "unit", "limit", "target", "peer", "spread");
  for (const auto& [name, measure] : kSuites) {
    if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), name) == chosen.end()) continue;
    for (const Row& r : measure(backend, copy)) {
      fmt::print("{:<64} {:>10.2f} {:>8} {:>8.4g} {:>8.4g} {:>8.4g} {:>6.1f}%\n", r.name, r.value, r.unit,
                 r.limit, r.target, r.peer_value, 100 * r.spread);
      std::cout.flush();
      rows += fmt::format(
          "{}    {{\"name\": \"{}\", \"value\": {:.4f}, \"unit\": \"{}\", \"limit\": {}, \"limit_by\": {}, "
          "\"target\": {}, \"peer\": {}, \"peer_value\": {}, \"us\": {:.3f}, \"interquartile_spread\": "
          "{:.4f}}}",
          rows.empty() ? "" : ",\n", r.name, r.value, r.unit, number_or_null(r.limit),
          text_or_null(r.limit_by), number_or_null(r.target), text_or_null(r.peer),
          number_or_null(r.peer_value), r.microseconds, r.spread);
    }
  }
  if (file.empty() || file == "-") return 0;
  std::ofstream out(file);
  out << fmt::format(
      "{{\n  \"benchmark\": \"gpu_bench\",\n  \"date\": \"{}\",\n  \"commit\": \"{}\",\n"
      "  \"hardware\": {{\"gpu\": \"{}\", \"multiprocessors\": {}, \"l2_bytes\": {}, \"cuda_driver\": {}, "
      "\"cuda_runtime\": {}}},\n"
      "  \"method\": \"graph replays over random inputs larger than L2, median of {}; copy: 2 GiB device to "
      "device, bytes read and written\",\n"
      "  \"copy_gb_per_s\": {:.1f},\n  \"rows\": [\n{}\n  ]\n}}\n",
      date, commit, gpu.name, gpu.multiProcessorCount, gpu.l2CacheSize, driver, CUDART_VERSION, kRepeats,
      copy, rows);
  return out.flush() ? 0 : 1;
}

}  // namespace
}  // namespace perigee::cuda

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: gpu_bench COMMIT DATE [FILE [SUITE...]]\n";
    return 2;
  }
  try {
    return perigee::cuda::run(argv[1], argv[2], argc > 3 ? argv[3] : "",
                              std::vector<std::string>(argv + std::min(argc, 4), argv + argc));
  } catch (const std::exception& e) {
    std::cerr << "gpu_bench: " << e.what() << "\n";
    return 1;
  }
}
