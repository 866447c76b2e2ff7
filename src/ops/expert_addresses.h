// All experts of a layer as one array, for devices: kernels find an expert's matrices by its id.
#pragma once

#include <vector>

#include "ops/weights.h"

namespace perigee {

struct ExpertMatrix {
  const void* values = nullptr;     // bf16 [out, in], or MXFP4 [out, in/2]
  const uint8_t* scales = nullptr;  // of MXFP4: [out, in/32]
};
struct ExpertAddresses {
  ExpertMatrix gate, up, down;
};

inline std::vector<ExpertAddresses> expert_addresses(const std::vector<MoeWeights::Expert>& experts) {
  const auto matrix = [](const ExpertLinear& w) -> ExpertMatrix {
    if (const auto* dense = std::get_if<Linear>(&w)) return {.values = dense->weight};
    const auto& packed = std::get<Mxfp4Linear>(w);
    return {.values = packed.packed, .scales = packed.scale};
  };
  std::vector<ExpertAddresses> out;
  for (const MoeWeights::Expert& e : experts)
    out.push_back({.gate = matrix(e.gate), .up = matrix(e.up), .down = matrix(e.down)});
  return out;
}

}  // namespace perigee
