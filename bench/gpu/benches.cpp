#include "bench/gpu/benches.h"

#include <algorithm>
#include <utility>

#include "bench/gpu/harness.h"

namespace perigee::cuda::bench {

namespace {
constexpr std::pair<const char*, void (*)(Bench&)> kBenches[] = {
    {"attend", attend}, {"attn_res_mix", attn_res_mix}, {"experts", experts}, {"index", index},
    {"kda", kda},       {"products", products}};
}  // namespace

std::vector<std::string> bench_names() {
  std::vector<std::string> names;
  for (const auto& [name, function] : kBenches) names.emplace_back(name);
  return names;
}

std::string run_benches(const std::vector<std::string>& names, const std::string& commit,
                        const std::string& date, bool print) {
  Bench bench(print);
  for (const auto& [name, function] : kBenches) {
    if (names.empty() || std::find(names.begin(), names.end(), name) != names.end()) function(bench);
  }
  return bench.json(commit, date);
}

}  // namespace perigee::cuda::bench
