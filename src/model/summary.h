// ModelSummary: what `inspect` reports about a config without reading a weight.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "model/config.h"
#include "model/roster.h"

namespace perigee {

struct ModelSummary {
  std::string architecture;
  int64_t tensors = 0;     // in the checkpoint, vision included
  int64_t parameters = 0;  // logical values: MXFP4 scales and padding do not count; vision does
  int64_t active_parameters =
      0;              // those that one text token multiplies with: no embedding table, no vision tower
  int64_t bytes = 0;  // of the checkpoint's tensors
  std::array<int64_t, kTensorKinds> tensors_by_kind{}, parameters_by_kind{}, bytes_by_kind{};
};

ModelSummary summarize(const ModelConfig& config);

// Bytes of the text model's weights on one of `tensor_parallel` ranks: heads, columns, experts and vocabulary
// rows are cut, what every rank needs whole is not.
int64_t rank_weight_bytes(const ModelConfig& config, int tensor_parallel);

}  // namespace perigee
