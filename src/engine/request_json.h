// A Request as JSON and back, every number exact: for event logs.
#pragma once

#include <boost/json/object.hpp>

#include "engine/request.h"

namespace perigee {

boost::json::object request_json(const Request& request);
// Throws Error{kBadFile} naming the field that is missing or of another type.
Request request_from_json(const boost::json::object& json);

}  // namespace perigee
