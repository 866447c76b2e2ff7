// Generation: prompts in, whole answers out, over an engine of its own. For callers who have all their
// requests at hand; a server talks to Engine.
#pragma once

#include <functional>
#include <vector>

#include "engine/engine.h"

namespace perigee {

struct Generation {
  std::vector<GeneratedToken> tokens;
  std::vector<GeneratedToken> prompt_tokens;  // as in Event
  FinishReason finish = FinishReason::kNone;
  std::string error;
  int64_t cached_tokens = 0;  // of the prompt, found in the prefix tree
};

struct GenerateOptions {
  SchedulerOptions scheduler = {.max_num_seqs = 8};
  // Prefixes known from requests before, of this runner's pool; requests start from them and leave theirs.
  // Without it every request computes its whole prompt.
  PrefixTree* prefixes = nullptr;
  // Called before every step while a request's prompt is being read, with the prompt tokens computed so far;
  // returning false cancels that request.
  std::function<bool(size_t request, int64_t done, int64_t total)> on_prefill = {};
  // Called for every token as it is sampled; returning false cancels that request.
  std::function<bool(size_t request, const GeneratedToken&)> on_token = {};
  std::function<void(size_t request, const Generation&)> on_finished = {};
};

// Runs all requests, of one answer each; the result has their order. Throws Error{kBadRequest} for a request
// that can never run, before any of them does.
std::vector<Generation> generate(Runner& runner, const std::vector<Request>& requests,
                                 const GenerateOptions& options = {});

}  // namespace perigee
