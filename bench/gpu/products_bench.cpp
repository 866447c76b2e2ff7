// bf16 projections of K3.1 and Kimi-Linear at batch 1 and 8, beside a kernel that only reads the same bytes;
// and products of prefill.
#include "ops/cuda/products.h"

#include <fmt/format.h>

#include "bench/gpu/harness.h"

namespace perigee::cuda::bench {

namespace {

struct Shape {
  const char* name;
  int outputs, k;
  double cublas;  // public table, batch 1–8, µs
};
// numerics.md "What the hardware allows".
const Shape kShapes[] = {{"kda_packed_tp8", 6144, 7168, 25}, {"o_proj_tp8", 7168, 1536, 8.5},
                         {"1536x7168", 1536, 7168, 9.7},     {"o_proj_tp1", 7168, 12288, 48},
                         {"kda_packed_tp1", 49152, 7168, 0}, {"kimi_linear_o_proj", 2304, 4096, 0}};

}  // namespace

void products(Bench& bench) {
  for (const Shape& s : kShapes) {
    const int64_t weights = int64_t{s.outputs} * s.k, bytes = weights * 2;
    const int sets = Bench::sets_beyond_l2(bytes);
    const DeviceArray<bf16> w = random_bf16(sets * weights, 0.02f);
    const double read = bench.read_microseconds(bytes);
    for (int rows : {1, 8}) {
      const DeviceArray<bf16> x = random_bf16(int64_t{rows} * s.k);
      DeviceArray<bf16> y(static_cast<size_t>(sets) * rows * s.outputs);
      const double us = bench.microseconds(sets, [&](int set) {
        multiply(Linear{.weight = w.data() + set * weights, .out = s.outputs, .in = s.k}, x.data(), rows,
                 y.data() + int64_t{set} * rows * s.outputs, bench.stream());
      });
      bench.add({.name = fmt::format("proj_{}_{}", s.name, rows),
                 .value = us,
                 .limit = read,
                 .target = read / 0.85,
                 .peer = s.cublas > 0 ? "cuBLAS, public table" : "",
                 .peer_value = s.cublas});
    }
  }
  for (int rows : {64, 512, 8192}) {
    constexpr int kOutputs = 6144, kIn = 7168;
    const DeviceArray<bf16> w = random_bf16(int64_t{kOutputs} * kIn, 0.02f),
                            x = random_bf16(int64_t{rows} * kIn);
    DeviceArray<bf16> y(static_cast<size_t>(rows) * kOutputs);
    const double us = bench.microseconds(2, [&](int) {
      multiply(Linear{.weight = w.data(), .out = kOutputs, .in = kIn}, x.data(), rows, y.data(),
               bench.stream());
    });
    const double flops = 2.0 * rows * kOutputs * kIn;
    bench.add({.name = fmt::format("prefill_6144x7168_{}", rows),
               .value = us,
               .limit = std::max(Bench::limit_of_flops(flops), bench.limit_of_bytes(2.0 * kOutputs * kIn))});
  }
}

}  // namespace perigee::cuda::bench
