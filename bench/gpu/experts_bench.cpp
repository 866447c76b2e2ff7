// moe_experts with MXFP4 weights, K3.1 at TP8: 896 experts of 3,584 × 384, 16 a token, drawn evenly.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "bench/gpu/harness.h"
#include "formats/mxfp4.h"
#include "ops/cuda/experts.h"
#include "ops/expert_addresses.h"

namespace perigee::cuda::bench {

namespace {

constexpr int kExperts = 896, kChoices = 16, kIn = 3584, kInter = 384;
constexpr int64_t kMatrix = int64_t{kIn} * kInter;

struct Goal {
  int rows;
  double target, peer;
  const char* bound_by;  // as Nsight Compute shows; empty where it was not asked
};

std::vector<int32_t> draw(int rows, std::mt19937& random) {
  std::vector<int32_t> ids(kExperts), out;
  std::iota(ids.begin(), ids.end(), 0);
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < kChoices; ++i) std::swap(ids[i], ids[i + random() % (kExperts - i)]);
    std::sort(ids.begin(), ids.begin() + kChoices);
    out.insert(out.end(), ids.begin(), ids.begin() + kChoices);
  }
  return out;
}

}  // namespace

void experts(Bench& bench) {
  const DeviceArray<uint8_t> packed = random_bytes(3 * kExperts * kMatrix / 2),
                             scales = random_bytes(3 * kExperts * kMatrix / kMxfp4Block, 115, 122);
  MoeWeights weights;
  for (int64_t e = 0; e < kExperts; ++e) {
    const auto matrix = [&](int64_t which, int out, int in) {
      return Mxfp4Linear{.packed = packed.data() + (3 * e + which) * kMatrix / 2,
                         .scale = scales.data() + (3 * e + which) * kMatrix / kMxfp4Block,
                         .out = out,
                         .in = in};
    };
    weights.experts.push_back(
        {.gate = matrix(0, kInter, kIn), .up = matrix(1, kInter, kIn), .down = matrix(2, kIn, kInter)});
  }
  const std::vector<ExpertAddresses> list = expert_addresses(weights.experts);
  const DeviceArray<ExpertAddresses> addresses{std::span<const ExpertAddresses>(list)};
  weights.addresses = addresses.data();
  const MoeConfig config{.num_experts = kExperts, .experts_per_token = kChoices, .intermediate_size = kInter};
  std::mt19937 random(1);
  const Goal goals[] = {
      {1, 16, 68,
       "latency: memory is 27 % busy in the first product; 3 warps a scheduler, 28 chunks of dependent "
       "products each"},
      {8, 90, 176,
       "latency: memory is 57 % busy in the first product; blocks wait for their first weights 18 % of it"},
      {64, 420, 844, ""},
      {8192, 3000, 7100,
       "arrival of gathered rows of x: multipliers wait 29 % of the first product; tensor pipe 29 % busy"}};
  for (const Goal& goal : goals) {
    const int rows = goal.rows, sets = rows == 1 ? 32 : rows == 8 ? 8 : 2;
    const std::vector<int32_t> chosen = draw(rows * sets, random);
    double used = 0;
    for (int set = 0; set < sets; ++set) {
      const auto first = chosen.begin() + int64_t{set} * rows * kChoices;
      used += static_cast<double>(std::set<int32_t>(first, first + int64_t{rows} * kChoices).size()) / sets;
    }
    const DeviceArray<int32_t> ids{std::span<const int32_t>(chosen)};
    const DeviceArray<float> factors = random_floats(int64_t{rows} * kChoices, 0.01f, 0.06f);
    const DeviceArray<bf16> z = random_bf16(int64_t{rows} * kIn);
    DeviceArray<float> partial(static_cast<size_t>(rows) * kIn);
    const auto args = [&](int set) {
      return MoeExpertsArgs{.weights = weights,
                            .config = config,
                            .activation = {.kind = Activation::kSitu},
                            .z = z.data(),
                            .experts = ids.data() + int64_t{set} * rows * kChoices,
                            .expert_weight = factors.data(),
                            .partial = partial.data(),
                            .rows = rows,
                            .in = kIn,
                            .lanes = 1,
                            .lanes_expert = false};
    };
    const double us = bench.microseconds(sets, [&](int set) { bench.backend().moe_experts(args(set)); });
    const double bytes = used * 3.0 * static_cast<double>(kMatrix) * (0.5 + 1.0 / kMxfp4Block);
    const double flops = 2.0 * 3 * static_cast<double>(kMatrix) * rows * kChoices;
    bench.add({.name = fmt::format("experts_{}", rows),
               .value = us,
               .limit = std::max(bench.limit_of_bytes(bytes), Bench::limit_of_flops(flops)),
               .target = goal.target,
               .peer = "public H200",
               .peer_value = goal.peer,
               .bound_by = goal.bound_by});
    if (rows != 8192) continue;
    const int64_t entries = int64_t{rows} * kChoices;
    const DeviceArray<bf16> down = random_bf16(entries * kIn);
    bench.add({.name = "experts_8192_combine",
               .value = bench.microseconds(
                   sets, [&](int set) { sum_experts(args(set), down.data(), bench.stream()); }),
               .limit = bench.limit_of_bytes(static_cast<double>(entries) * kIn * 2 + 4.0 * rows * kIn)});
  }
}

}  // namespace perigee::cuda::bench
