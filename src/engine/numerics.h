// The numerics identity: everything the bits of a logit may depend on besides the tokens before it. Two
// engines whose digests are equal give the same bits; engines whose digests differ refuse to work together.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/config.h"
#include "ops/cache_view.h"
#include "ops/plan.h"

namespace perigee {

struct NumericsIdentity {
  std::vector<std::pair<std::string, std::string>> fields;  // in a fixed order, all of them digested
  std::string digest;                                       // 16 hex digits
};

struct Precision {
  LatentFormat latent = LatentFormat::kBf16;
  IndexKeyFormat index = IndexKeyFormat::kFp8;
};

NumericsIdentity numerics_identity(const ModelConfig& config, const std::string& weights_digest,
                                   const Precision& precision, const ReductionPlan& plan,
                                   const std::string& architecture);

}  // namespace perigee
