#include "engine/request_json.h"

#include <boost/json.hpp>

#include "base/error.h"

namespace perigee {

namespace {

// One list of fields for both directions: `field(name, reference)`.
template <typename R, typename F>
void for_each_field(R& r, const F& field) {
  field("prompt", r.prompt);
  field("temperature", r.sampling.temperature);
  field("top_p", r.sampling.top_p);
  field("top_k", r.sampling.top_k);
  field("seed", r.sampling.seed);
  field("repetition_penalty", r.logits.repetition_penalty);
  field("frequency_penalty", r.logits.frequency_penalty);
  field("presence_penalty", r.logits.presence_penalty);
  field("min_p", r.logits.min_p);
  field("logit_bias", r.logits.logit_bias);
  field("allowed_ids", r.logits.allowed_ids);
  field("bad_words", r.logits.bad_words);
  field("min_tokens", r.logits.min_tokens);
  field("max_tokens", r.max_tokens);
  field("stop_ids", r.stop_ids);
  field("n", r.n);
  field("top_logprobs", r.top_logprobs);
  field("processed_logprobs", r.processed_logprobs);
  field("prompt_logprobs", r.prompt_logprobs);
  field("priority", r.priority);
  field("salt", r.salt);
}

}  // namespace

boost::json::object request_json(const Request& request) {
  boost::json::object out;
  for_each_field(request,
                 [&](const char* name, const auto& value) { out[name] = boost::json::value_from(value); });
  out["constraint"] = nullptr;
  if (request.logits.constraint) out["constraint"] = request.logits.constraint->record();
  return out;
}

Request request_from_json(const boost::json::object& json, const ReadConstraint& read_constraint) {
  Request request;
  for_each_field(request, [&](const char* name, auto& value) {
    const boost::json::value* found = json.if_contains(name);
    if (!found) fail(ErrorCode::kBadFile, "a request has no \"{}\"", name);
    const auto got = boost::json::try_value_to<std::decay_t<decltype(value)>>(*found);
    if (!got) fail(ErrorCode::kBadFile, "a request's \"{}\" is {}", name, boost::json::serialize(*found));
    value = *got;
  });
  const boost::json::value* constraint = json.if_contains("constraint");
  if (!constraint || !(constraint->is_null() || constraint->is_object()))
    fail(ErrorCode::kBadFile, "a request has no \"constraint\", or one that is no object");
  if (constraint->is_null()) return request;
  if (!read_constraint)
    fail(ErrorCode::kBadFile,
         "a request prescribes its answer's form, which can be read only with the model's vocabulary");
  request.logits.constraint = read_constraint(constraint->get_object());
  return request;
}

}  // namespace perigee
