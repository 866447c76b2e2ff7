// What a caller asks of the engine, and what it hears back. Token ids alone: text, stop strings and tool
// calls are above (text/).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/logits.h"
#include "ops/ops.h"

namespace perigee {

using RequestId = int64_t;

struct Request {
  std::vector<int32_t> prompt;
  SampleParams sampling = {};
  LogitsParams logits = {};  // penalties, bias and bans before the draw
  int max_tokens = 1024;
  std::vector<int32_t> stop_ids = {};  // ends an answer; the stop id itself is part of the tokens
  int n = 1;                           // answers (branches); branch b draws with seed sampling.seed + b
  int top_logprobs = 0;                // alternatives to report per token
  bool processed_logprobs = false;     // of the distribution that is drawn from, not of the model's own
  int prompt_logprobs = -1;  // ≥ 0: the model's own of the prompt's tokens too, with so many alternatives
  int priority = 0;          // lower runs first, and may take the place of higher
  std::string salt = {};     // prefixes are shared between requests of one salt only
};

struct GeneratedToken {
  int32_t id = 0;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top = {};  // most likely first; ties by lowest id
};

enum class FinishReason : uint8_t {
  kNone,       // more will come
  kStop,       // a stop id
  kLength,     // max_tokens, or the end of the model's context
  kCancelled,  // by cancel()
  kError,      // see Event::error; the engine goes on with the others
};
const char* to_string(FinishReason reason);  // "", "stop", "length", "cancelled", "error"

// News of one branch. Its last event, and only that, has a finish reason.
struct Event {
  RequestId request = 0;
  int branch = 0;
  std::vector<GeneratedToken> tokens = {};         // in order, from where the last event ended
  std::vector<GeneratedToken> prompt_tokens = {};  // prompt tokens 1, 2, … with their log-probabilities, when
                                                   // asked for; from where the last event ended; branch 0
  int64_t cached_tokens = 0;                       // of the prompt, found in the prefix tree at first
  FinishReason finish = FinishReason::kNone;
  std::string error = {};
};

}  // namespace perigee
