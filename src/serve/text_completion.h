// /v1/completions: from a request's JSON to a plan, and from answers to its JSON.
#pragma once

#include <string>

#include "serve/body_fields.h"
#include "serve/exchange.h"
#include "serve/served_model.h"

namespace perigee::serve {

Plan plan_text_completion(BodyFields& body, const ServedModel& model, const std::string& id);

}  // namespace perigee::serve
