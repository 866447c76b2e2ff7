// /v1/responses, the subset that agents use: text and function tools, whole and streamed. Nothing is stored,
// so a conversation is sent whole every time.
#pragma once

#include <string>

#include "serve/body_fields.h"
#include "serve/exchange.h"
#include "serve/served_model.h"

namespace perigee::serve {

// A responses request as a chat request, field by field. Throws Error naming what has no equivalent.
boost::json::object chat_request_of(BodyFields& body);

Plan plan_response(BodyFields& body, const ServedModel& model, const std::string& id);

}  // namespace perigee::serve
