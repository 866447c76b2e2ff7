// Structured output: what a request asks of its answer's form, as a constraint for the engine. Grammars are
// made on the request threads, within bounds; the engine's thread only follows them.
#pragma once

#include <boost/json/value.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/logits.h"
#include "serve/body_fields.h"
#include "serve/served_model.h"
#include "text/grammar.h"

namespace perigee::serve {

// Why a constraint could not be kept to the end; "" while it could.
using ConstraintFault = std::function<std::string()>;

struct Constraint {
  std::shared_ptr<const TokenConstraint> start;
  ConstraintFault fault;
};

// The text that structured_outputs, or vLLM's older guided_*, asks for; none when they are absent. Rule 0 of
// `grammar` must be there already.
std::optional<Grammar::Symbol> read_structured_outputs(BodyFields& body, Grammar& grammar,
                                                       const ServedModel& model);
// The text that a response_format asks for: OpenAI's json_object and json_schema, vLLM's structural_tag.
Grammar::Symbol read_response_format(const boost::json::value& format, Grammar& grammar,
                                     const ServedModel& model);

Constraint make_constraint(Grammar grammar, const ServedModel& model, const std::vector<int32_t>& stop_ids);

// A constraint from its record in an event log. Throws Error{kBadFile} for what is none.
std::shared_ptr<const TokenConstraint> read_constraint(const boost::json::object& record,
                                                       std::shared_ptr<const TokenTree> tokens);

// Fields that may leave a constrained answer without a token to go on with.
void refuse_beside_constraint(BodyFields& body);

}  // namespace perigee::serve
