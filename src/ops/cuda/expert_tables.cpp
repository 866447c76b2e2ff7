#include "ops/cuda/expert_tables.h"

#include <vector>

namespace perigee::cuda {

namespace {

ExpertMatrix matrix(const ExpertLinear& w) {
  if (const auto* dense = std::get_if<Linear>(&w)) return {.values = dense->weight};
  const auto& packed = std::get<Mxfp4Linear>(w);
  return {.values = packed.packed, .scales = packed.scale};
}

}  // namespace

const ExpertMatrices* ExpertTables::of(const MoeWeights& weights) {
  MemoryBlock& table = tables_[matrix(weights.experts[0].gate).values];
  if (!table.data()) {
    std::vector<ExpertMatrices> experts;
    for (const MoeWeights::Expert& e : weights.experts)
      experts.push_back({.gate = matrix(e.gate), .up = matrix(e.up), .down = matrix(e.down)});
    const int64_t bytes = static_cast<int64_t>(experts.size() * sizeof(ExpertMatrices));
    table = MemoryBlock(memory_, bytes);
    memory_.upload(table.data(), experts.data(), bytes);
  }
  return table.as<ExpertMatrices>();
}

}  // namespace perigee::cuda
