// Random traffic for an engine: requests that share prefixes, branch and repeat, cancellations, and the
// limits they run under; as a script that can be written down, cut smaller, and run again.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
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
  int64_t memory_rows = 0, file_rows = 0;  // of the tiers behind the tree; 0: none
  std::vector<TrafficAction> actions;
};

// Its embedding shall be NaN: whatever is computed after it is, states and rows too. A few prompts have it.
constexpr int32_t kDamagedToken = 5;

// A prompt that is new, or repeats, goes on from or parts from one of `prompts`, which it joins; with any of
// what a request may ask for.
using Prompts = std::vector<std::vector<int32_t>>;
Request random_request(std::mt19937_64& random, Prompts& prompts, int vocab);

TrafficScript random_traffic(uint64_t seed, int actions, int vocab);
// As lines that a person can read and type in again.
std::string to_string(const TrafficScript& script);

// The fewest actions of a failing script that still fail, as far as leaving out runs of them finds it.
TrafficScript shrink(TrafficScript script, const std::function<bool(const TrafficScript&)>& fails);

// Drafts that are right with probability ¾ each, as far as `answers` knows what comes, else made up.
Drafter random_drafter(uint64_t seed, int vocab, const std::vector<std::vector<int32_t>>& answers);

}  // namespace perigee::test
