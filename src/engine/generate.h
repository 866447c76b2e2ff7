// Generation: prompts in, tokens out, several requests side by side. What one request gives does not depend
// on the others (numerics.md, row rule), so batching is free of surprises.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/runner.h"

namespace perigee {

struct GenerateRequest {
  std::vector<int32_t> prompt;
  SampleParams sampling;
  int max_tokens = 1024;
  std::vector<int32_t> stop_ids;          // ends the answer; the stop id itself is part of the tokens
  int top_logprobs = 0;                   // alternatives to report per token
  LogitsParams logits = {};               // penalties, bias and bans before the draw
  const SequenceCache* prefix = nullptr;  // holds the first prefix->length() tokens of the prompt
  bool keep_cache = false;                // hand the cache back with the answer
};

struct GeneratedToken {
  int32_t id = 0;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;  // most likely first; ties by lowest id
};

struct Generation {
  std::vector<GeneratedToken> tokens;
  std::string finish_reason;                   // "stop", "length" or "cancelled"
  std::shared_ptr<const SequenceCache> cache;  // the prompt and all tokens but the last; if asked for
  double prefill_seconds = 0, decode_seconds = 0;
};

struct GenerateOptions {
  int concurrency = 8;           // requests running at once
  int max_batched_tokens = 512;  // prompt tokens computed in one step
  // Called before every step while a request's prompt is being read, with the prompt tokens computed so far;
  // returning false cancels that request.
  std::function<bool(size_t request, int64_t done, int64_t total)> on_prefill;
  // Called for every token as it is sampled; returning false cancels that request.
  std::function<bool(size_t request, const GeneratedToken&)> on_token;
  std::function<void(size_t request, const Generation&)> on_finished;
};

// A cache that holds these tokens, for requests that begin with them.
SequenceCache prefill(Runner& runner, std::span<const int32_t> tokens, const GenerateOptions& options = {});

// Runs all requests; the result has their order. Throws Error{kBadRequest} for an empty or too long prompt.
std::vector<Generation> generate(Runner& runner, const std::vector<GenerateRequest>& requests,
                                 const GenerateOptions& options = {});

}  // namespace perigee
