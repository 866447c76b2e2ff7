// The addresses of all experts' matrices of a layer, on the device.
#pragma once

#include <map>

#include "ops/cuda/device_memory.h"
#include "ops/weights.h"

namespace perigee::cuda {

struct ExpertMatrix {
  const void* values = nullptr;     // bf16 [out, in], or MXFP4 [out, in/2]
  const uint8_t* scales = nullptr;  // of MXFP4: [out, in/32]
};
struct ExpertMatrices {
  ExpertMatrix gate, up, down;
};

class ExpertTables {
 public:
  explicit ExpertTables(DeviceMemory& memory) : memory_(memory) {}
  // [experts]. Made when a layer is first asked for, which waits for the device once.
  const ExpertMatrices* of(const MoeWeights& weights);

 private:
  DeviceMemory& memory_;
  std::map<const void*, MemoryBlock> tables_;  // by the first expert's gate: a layer's own
};

}  // namespace perigee::cuda
