// How fast attn_res_mix runs, against the bandwidth of a large copy.
#include <fmt/format.h>

#include "measure.h"

namespace perigee::cuda {
namespace {

constexpr int kHidden = 7168, kBanks = 8;
constexpr int kMostLaunches = 1024;

Row measure(int rows, CudaBackend& backend, double copy) {
  const size_t tensor = size_t{1} * rows * kHidden;           // elements
  const size_t bytes = (kBanks + 2) * tensor * sizeof(bf16);  // each source read, out written
  const int sets = static_cast<int>(std::clamp<size_t>(kBeyondL2 / bytes, 2, kMostLaunches));
  const DeviceArray<bf16> sources = random_array(sets * (kBanks + 1) * tensor);
  DeviceArray<bf16> out(sets * tensor);
  std::vector<float> weights(kHidden);
  for (int d = 0; d < kHidden; ++d) weights[d] = 0.02f * (d % 17 - 8);
  const DeviceArray<float> score{std::span<const float>(weights)}, norm{std::span<const float>(weights)};
  const Time t = time_in_graph(backend.memory().stream(), sets, [&](int set) {
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
  });
  return {.name = fmt::format("attn_res_mix_{} (hidden {}, {} banks)", rows, kHidden, kBanks),
          .value = static_cast<double>(bytes) / t.microseconds / 1e3,
          .unit = "GB/s",
          .limit = copy,
          .limit_by = "copy bandwidth",
          .microseconds = t.microseconds,
          .spread = t.spread};
}

}  // namespace

std::vector<Row> measure_attn_res_mix(CudaBackend& backend, double copy) {
  std::vector<Row> rows;
  for (int count : {1, 8, 64, 512, 8192}) rows.push_back(measure(count, backend, copy));
  return rows;
}

}  // namespace perigee::cuda
