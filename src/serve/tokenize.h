// /tokenize and /detokenize.
#pragma once

#include <boost/json/object.hpp>
#include <string_view>

#include "serve/served_model.h"

namespace perigee::serve {

// {"prompt"} or {"messages", …} → {"count", "max_model_len", "tokens", "token_strs"}.
boost::json::object tokenize(std::string_view body, const ServedModel& model);
// {"tokens"} → {"prompt"}.
boost::json::object detokenize(std::string_view body, const ServedModel& model);

}  // namespace perigee::serve
