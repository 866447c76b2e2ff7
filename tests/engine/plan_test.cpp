// A reduction plan that does not fit the model is refused, with the lanes that would.
#include <gtest/gtest.h>

#include "support/models.h"

namespace perigee {
namespace {

std::string plan_error(ModelConfig config, const ReductionPlan& plan) {
  Weights weights =
      load_weights("", config, {.format = LoadFormat::kDummy, .seed = 7, .show_progress = false});
  try {
    Runner(std::move(config), std::move(weights), {.precision = {}, .plan = plan, .threads = 1});
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    return e.what();
  }
  return "";
}

TEST(Plan, EveryFittingNumberOfLanesRuns) {
  const ModelConfig config = test::small_config("k31");
  for (int lanes : {1, 2, 4, 8}) {
    EXPECT_EQ(plan_error(config, {.lanes = lanes, .attention_lanes = lanes}), "");
    EXPECT_EQ(plan_error(config, {.lanes = lanes, .moe_lanes_expert = true}), "");
  }
}

TEST(Plan, NotAPowerOfTwo) {
  const ModelConfig config = test::small_config("k31");
  for (int lanes : {-1, 0, 3, 12, 64}) {
    EXPECT_EQ(plan_error(config, {.lanes = lanes}),
              "--lanes " + std::to_string(lanes) + ": must be 1, 2, 4, 8, 16 or 32");
    EXPECT_EQ(plan_error(config, {.attention_lanes = lanes}),
              "--attention-lanes " + std::to_string(lanes) + ": must be 1, 2, 4, 8, 16 or 32");
  }
}

TEST(Plan, LanesThatDoNotDivide) {
  const ModelConfig config = test::small_config("k31");
  EXPECT_EQ(plan_error(config, {.lanes = 16}),
            "--lanes 16: this model has 8 KDA heads, which do not divide evenly; lanes that fit: 1, 2, 4, 8");
  // Lanes of experts have a count of their own.
  ModelConfig few = config;
  few.moe.num_experts = 6;
  EXPECT_EQ(plan_error(few, {.lanes = 4, .moe_lanes_expert = true}),
            "--lanes 4: this model has 6 experts, which do not divide evenly; lanes that fit: 1, 2");
}

}  // namespace
}  // namespace perigee
