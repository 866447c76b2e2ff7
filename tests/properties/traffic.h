// Random traffic for an engine: requests that share prefixes, branch and repeat, cancellations, and the
// limits they run under; as a script that can be written down, cut smaller, and run again.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace perigee::test {

// One line of a script: a request, a cancellation, or steps.
struct TrafficAction {
  enum class Kind { kSubmit, kCancel, kStep } kind = Kind::kStep;
  Request request = {};        // kSubmit
  int target = 0, branch = 0;  // kCancel: of the target-th submitted request
  int count = 1;               // kStep
};

struct TrafficScript {
  uint64_t seed = 0;  // of everything random that is no action: the drafts
  SchedulerOptions scheduler = {};
  PrefixTreeOptions tree = {};
  int64_t spare_rows = 0;  // of the pool, beside those that one request alone needs
  int64_t slots = 4;
  int64_t store_rows = 0;  // of the host tier behind the tree; 0: none
  std::vector<TrafficAction> actions;
};

TrafficScript random_traffic(uint64_t seed, int actions, int vocab);
// As lines that a person can read and type in again.
std::string to_string(const TrafficScript& script);

// The fewest actions of a failing script that still fail, as far as leaving out runs of them finds it.
TrafficScript shrink(TrafficScript script, const std::function<bool(const TrafficScript&)>& fails);

// Drafts that are right with probability ¾ each, as far as `answers` knows what comes, else made up.
Drafter random_drafter(uint64_t seed, int vocab, const std::vector<std::vector<int32_t>>& answers);

}  // namespace perigee::test
