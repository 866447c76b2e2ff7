// The distribution that `sample` draws from: see SampleParams.
#pragma once

#include <vector>

#include "ops/ops.h"

namespace perigee::cpu {

// log Σ_v exp(z_v − max) + max over the vocabulary in `lanes` blocks of rows: each block a sum of 16 partials
// (v mod 16), blocks by the lane tree, all about the same maximum.
float log_sum_exp(const float* z, int vocab, int lanes);

// Logits to those of the drawn distribution, at a temperature of at least kGreedyTemperature: divided by it,
// and −∞ for what top-k and top-p leave out.
void keep_drawn(std::vector<float>& z, const SampleParams& params);

}  // namespace perigee::cpu
