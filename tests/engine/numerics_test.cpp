// The numerics identity: equal inputs give one digest, and no field can change without the digest changing.
#include "engine/numerics.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "support/models.h"

namespace perigee {
namespace {

struct Inputs {
  ModelConfig config = test::small_config("k31");
  std::string weights = "0123456789abcdef", architecture = "x86-bf16-v1";
  Precision precision;
  ReductionPlan plan;

  NumericsIdentity identity() const {
    return numerics_identity(config, weights, precision, plan, architecture);
  }
};

TEST(Numerics, AnyFieldChangesTheDigest) {
  const std::vector<std::function<void(Inputs&)>> changes = {
      [](Inputs& i) { i.architecture = "sm_90a"; },
      [](Inputs& i) { i.weights = "0123456789abcdee"; },
      [](Inputs& i) { i.config.architecture += "x"; },
      [](Inputs& i) { i.config.dsa->top_k /= 2; },
      [](Inputs& i) { i.config.dsa.reset(); },
      [](Inputs& i) { i.precision.latent = LatentFormat::kFp8; },
      [](Inputs& i) { i.precision.latent = LatentFormat::kNvfp4; },
      [](Inputs& i) { i.precision.index = IndexKeyFormat::kBf16; },
      [](Inputs& i) { i.precision.index = IndexKeyFormat::kMxfp4; },
      [](Inputs& i) { i.plan.lanes = 2; },
      [](Inputs& i) { i.plan.attention_lanes = 2; },
      [](Inputs& i) { i.plan.moe_lanes_expert = true; },
      [](Inputs& i) { i.plan.dense_segment = 2048; },
  };
  const NumericsIdentity base = Inputs().identity();
  EXPECT_EQ(base.digest, Inputs().identity().digest);
  EXPECT_EQ(base.digest.size(), 16u);
  std::set<std::string> digests = {base.digest};
  for (size_t i = 0; i < changes.size(); ++i) {
    Inputs inputs;
    changes[i](inputs);
    EXPECT_TRUE(digests.insert(inputs.identity().digest).second) << "change " << i;
  }
}

// What does not reach the bits does not reach the digest.
TEST(Numerics, ThreadsAndIndexFormatsThatDoNotCount) {
  const auto threads = [](int n) { return RunnerOptions{.precision = {}, .plan = {}, .threads = n}; };
  const Runner one = test::small_runner("k31", threads(1)), three = test::small_runner("k31", threads(3));
  EXPECT_EQ(one.numerics().digest, three.numerics().digest);
  Inputs plain, other;
  plain.config = other.config = test::small_config("kimi-k3");  // no DSA, so no index keys
  other.precision.index = IndexKeyFormat::kMxfp4;
  EXPECT_EQ(plain.identity().digest, other.identity().digest);
}

// The config's own numbers that change results although no weight does.
TEST(Numerics, ConfigNumbersCount) {
  const std::vector<std::function<void(ModelConfig&)>> changes = {
      [](ModelConfig& c) { c.rms_norm_eps *= 2; },
      [](ModelConfig& c) { c.moe.experts_per_token -= 1; },
      [](ModelConfig& c) { c.moe.routed_scaling_factor *= 2; },
      [](ModelConfig& c) { c.kda.gate_lower_bound = -4.0f; },
  };
  const std::string base = Inputs().identity().digest;
  for (size_t i = 0; i < changes.size(); ++i) {
    Inputs inputs;
    changes[i](inputs.config);
    EXPECT_NE(inputs.identity().digest, base) << "change " << i;
  }
}

}  // namespace
}  // namespace perigee
