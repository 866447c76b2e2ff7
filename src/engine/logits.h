// What a request may ask of its logits before a token is drawn. Names, meaning and order are vLLM's:
//   allowed ids, bad words, logit bias, minimum length  →  repetition, frequency, presence penalties
//   →  temperature, min-p  →  (stage `sample`) top-k, top-p, draw.
// Each step is a function of this request's own logits and tokens, so batch mates change nothing.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "ops/ops.h"

namespace perigee {

// The form that an answer must have, from here on. It never changes: after() is another, so that drafts and
// branches each go their own way, and going back is keeping the old one. One thread uses all that come from
// one.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // The tokens that may come, ascending; empty: any.
  virtual const std::vector<int32_t>& allowed() const = 0;
  // Null when nothing is prescribed any more: the token was not allowed (a draft that will be rejected).
  virtual std::shared_ptr<const TokenConstraint> after(int32_t token) const = 0;
  // What an event log keeps, for a replay to make the same constraint of a whole answer again.
  virtual boost::json::object record() const = 0;
};

struct LogitsParams {
  float repetition_penalty = 1.0f;  // > 0; z/r for z > 0, z·r otherwise, of tokens in prompt or answer
  float frequency_penalty = 0.0f;   // [−2, 2] times a token's count in the answer is subtracted
  float presence_penalty = 0.0f;    // [−2, 2] is subtracted once for every token of the answer
  float min_p = 0.0f;               // [0, 1]: tokens less likely than min_p times the likeliest are out
  std::vector<std::pair<int32_t, float>> logit_bias;  // added; [−100, 100]
  std::vector<int32_t> allowed_ids;                   // empty: every token may be drawn
  std::vector<std::vector<int32_t>> bad_words;        // token sequences that must not appear in the answer
  int min_tokens = 0;                                 // until then no stop id is drawn
  std::shared_ptr<const TokenConstraint> constraint;  // null: any form
};

// Throws Error{kBadRequest} naming the field, its value and what is allowed.
void check_logits_params(const LogitsParams& params, int vocab);

// One request's logits, token after token.
class LogitsProcessor {
 public:
  // `stop_ids`: what min_tokens holds back.
  LogitsProcessor(LogitsParams params, std::vector<int32_t> stop_ids, std::span<const int32_t> prompt);

  // False when apply() would leave every logit as it is.
  bool active() const { return active_; }
  // Turns logits[vocab] into those to draw from. `temperature` is the draw's: min-p compares probabilities
  // after it.
  void apply(std::span<float> logits, float temperature) const;
  // The token that was drawn: part of the answer from now on.
  void accept(int32_t token);

 private:
  void restrict(std::span<float> logits) const;
  void penalise(std::span<float> logits) const;

  LogitsParams params_;
  std::vector<int32_t> stop_ids_, answer_;
  std::vector<int32_t> seen_;                       // sorted: tokens of prompt and answer
  std::vector<std::pair<int32_t, int32_t>> count_;  // sorted by token: its count in the answer
  bool active_;
};

}  // namespace perigee
