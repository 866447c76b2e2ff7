// Checkpoint: a sequence state that can be gone on from.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/cache_pool.h"

namespace perigee {

// The state at a chunk start: S and the conv inputs before it, in the plan's state rows. Once shared, the
// rows are never written again.
struct Checkpoint {
  int64_t position = 0;   // multiple of kChunk
  std::vector<Row> rows;  // none at position 0, and in a model without states
};

}  // namespace perigee
