// attn_res_mix: 8 banks, hidden 7168.
#include <fmt/format.h>

#include "bench/gpu/harness.h"

namespace perigee::cuda::bench {

void attn_res_mix(Bench& bench) {
  constexpr int kHidden = 7168, kBanks = 8;
  const DeviceArray<float> score = random_floats(kHidden, 0.02f), norm = random_floats(kHidden, 0.1f, 1.0f);
  for (int rows : {1, 8, 64, 512, 8192}) {
    const int64_t tensor = int64_t{rows} * kHidden,
                  bytes = (kBanks + 2) * tensor * 2;  // sources read, out written
    const int sets = Bench::sets_beyond_l2(bytes, 1024);
    const DeviceArray<bf16> sources = random_bf16(sets * (kBanks + 1) * tensor);
    DeviceArray<bf16> out(static_cast<size_t>(sets * tensor));
    const double us = bench.microseconds(sets, [&](int set) {
      const bf16* first = sources.data() + set * (kBanks + 1) * tensor;
      std::vector<const bf16*> banks;
      for (int j = 0; j < kBanks; ++j) banks.push_back(first + j * tensor);
      bench.backend().attn_res_mix({.stream = first + kBanks * tensor,
                                    .banks = banks,
                                    .score = score.data(),
                                    .norm = norm.data(),
                                    .eps = 1e-5f,
                                    .out = out.data() + set * tensor,
                                    .rows = rows,
                                    .hidden = kHidden});
    });
    bench.add(
        {.name = fmt::format("attn_res_mix_{}", rows), .value = us, .limit = bench.limit_of_bytes(bytes)});
  }
}

}  // namespace perigee::cuda::bench
