// The reduction plan: every place where a sum is cut, fixed for good. Part of the numerics identity.
#pragma once

#include <cstdint>

#include "ops/break_rule.h"

namespace perigee {

struct ReductionPlan {
  int lanes = 1;            // o_proj, down_proj, routed experts (1, 2, 4, 8, 16, 32)
  int attention_lanes = 1;  // a key at position p belongs to lane (p / 16) mod attention_lanes
  bool moe_lanes_expert =
      false;  // lanes of the experts: blocks of expert ids, or (default) of intermediate columns
  int dense_segment = 4096;  // positions in one segment of dense attention
};

constexpr int kChunk = 16;    // positions in one KDA chunk, at multiples of 16
constexpr int kKeyTile = 64;  // keys in one tile of an attention walk
constexpr int kMaxLanes = 32;

// The fixed tree over lanes: strides lanes/2 … 1, lane l adding lane l + stride. A rank of W owns the lanes l
// with l mod W = rank, so its strides lanes/2 … W stay local and W/2 … 1 are the exchange: the same tree for
// every W.
inline float lane_tree(float* lane, int lanes) {
  if (rule_broken(Rule::kLane)) {  // left to right: not the same sum for every number of ranks
    for (int l = 1; l < lanes; ++l) lane[0] += lane[l];
    return lane[0];
  }
  for (int stride = lanes / 2; stride > 0; stride /= 2) {
    for (int l = 0; l < stride; ++l) lane[l] += lane[l + stride];
  }
  return lane[0];
}

// The lane tree over first[0], first[stride], … (one value a lane).
inline float reduce_lanes(const float* first, int64_t stride, int lanes) {
  float lane[kMaxLanes] = {};
  for (int l = 0; l < lanes; ++l) lane[l] = first[l * stride];
  return lane_tree(lane, lanes);
}

}  // namespace perigee
