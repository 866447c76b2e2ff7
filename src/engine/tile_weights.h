// Tiles: the backend's own order of the model's matrices, made once after loading. For a big model they are
// kept in a file beside it, so that the next start reads them instead.
#pragma once

#include <string>

#include "model/weights.h"
#include "ops/ops.h"

namespace perigee {

struct TileOptions {
  std::string folder;  // where the file is kept; empty: nowhere
  int threads = 1;
  int64_t smallest_file = 256 << 20;  // bytes of tiles; fewer are made faster than a file is worth
  bool show_progress = true;
};

// Gives every matrix that the backend wants in an order of its own its tiles. Nothing happens for a backend
// that reads matrices as they are. A file that does not fit the weights, the plan and the backend is
// replaced; a folder that cannot be written costs one line on stderr.
void tile_weights(Weights& weights, Backend& backend, const ReductionPlan& plan, const TileOptions& options);

// The file's name in the folder.
std::string tile_file_name(const Weights& weights, const Backend& backend);

}  // namespace perigee
