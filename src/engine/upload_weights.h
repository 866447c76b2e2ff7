// Weights in a device's memory.
#pragma once

#include "base/memory.h"
#include "model/weights.h"

namespace perigee {

// Copies every array and matrix to `memory`, each aligned to 256 bytes, and lets the weights point there;
// what is stored once (tied embeddings) stays so. Host copies are dropped. Throws Error{kUnsupported} with
// the size when the memory does not hold them.
void upload_weights(Weights& weights, const ModelConfig& config, Memory& memory, bool show_progress = true);

}  // namespace perigee
