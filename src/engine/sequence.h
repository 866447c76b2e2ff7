// Sequence: one branch of a request, from submit to its last token. The scheduler moves it between waiting
// and running; what it has computed lies in `cached` while it runs, and in the prefix tree after.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cache/cached_sequence.h"
#include "engine/request.h"

namespace perigee {

struct Sequence {
  RequestId request = 0;
  int branch = 0;
  std::vector<int> siblings = {};  // branches that start where its prompt ends
  std::shared_ptr<const Request> asked;
  std::vector<int32_t> tokens;  // prompt and answer
  LogitsProcessor processor;
  std::optional<CachedSequence> cached = {};  // while it runs
  int64_t cached_tokens = 0;                  // of the prompt, found in the tree when it first ran
  bool started = false;                       // has run before
  int64_t scored = 1;      // prompt tokens whose log-probability is reported; the first has none
  int64_t ticket = 0;      // of the rows that are being fetched for it
  bool looked_up = false;  // in the store, since it waits

  int64_t prompt_tokens() const { return static_cast<int64_t>(asked->prompt.size()); }
  int64_t answer_tokens() const { return static_cast<int64_t>(tokens.size()) - prompt_tokens(); }
  bool scores_prompt() const { return asked->prompt_logprobs >= 0 && scored < prompt_tokens(); }
};

}  // namespace perigee
