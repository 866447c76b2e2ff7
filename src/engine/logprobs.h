// Log-probabilities as a caller sees them. Raw ones are the model's own: logit − log Σ exp(logits), before
// temperature and before any token is left out. Processed ones are those of the distribution that is drawn
// from: after penalties, bias and bans, temperature, min-p, top-k and top-p; −∞ for what is left out. With
// temperature 0 nothing is drawn: then they are those of the processed logits at temperature 1.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/logits.h"

namespace perigee {

// The n most likely tokens of logits[vocab], most likely first, ties by lowest id, NaN last; with
// logit − log_norm each.
std::vector<std::pair<int32_t, float>> top_logprobs(std::span<const float> logits, float log_norm, int n);

// Processed log-probabilities [vocab]; the sum over the vocabulary is cut into `lanes` as `sample` cuts it.
std::vector<float> processed_logprobs(std::span<const float> logits, const LogitsProcessor& processor,
                                      const SampleParams& params, int lanes);

}  // namespace perigee
