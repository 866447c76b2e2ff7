// The seam between an answer and the JSON of one API: chat completions, text completions, responses. An
// envelope is used by one thread at a time.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "serve/answer_text.h"

namespace perigee::serve {

struct Usage {
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
};

class Envelope {
 public:
  virtual ~Envelope() = default;

  // The prompt's log-probabilities have come (when they were asked for), before any delta of its choices.
  virtual void prompt_logprobs(int /*prompt*/, std::vector<GeneratedToken> /*tokens*/) {}
  // Server-sent events of a stream, each "data: …\n\n".
  virtual std::string events(int choice, const AnswerDelta& delta, const Usage& usage) = 0;
  virtual std::string last_events(const Usage& usage) = 0;
  virtual std::string error_events(int status, const std::string& message) = 0;
  // The body of a whole answer; `choices` in order of their index.
  virtual std::string whole(std::vector<AnswerDelta> choices, const Usage& usage) = 0;
};

// How a stream of completions ends: the chunk with the usage when asked for, made from `head`; or an error.
std::string last_chunks(bool include_usage, boost::json::object head, const Usage& usage);
std::string error_chunks(int status, const std::string& message);
std::string sse(const boost::json::value& data);
boost::json::object usage_json(const Usage& usage);

}  // namespace perigee::serve
