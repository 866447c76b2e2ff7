// A Request as JSON and back, every number exact: for event logs.
#pragma once

#include <boost/json/object.hpp>
#include <functional>
#include <memory>

#include "engine/request.h"

namespace perigee {

// Makes a constraint of what TokenConstraint::record() gave.
using ReadConstraint =
    std::function<std::shared_ptr<const TokenConstraint>(const boost::json::object& record)>;

boost::json::object request_json(const Request& request);
// Throws Error{kBadFile} naming the field that is missing or of another type, or that there is a constraint
// and nothing to read it.
Request request_from_json(const boost::json::object& json, const ReadConstraint& read_constraint);

}  // namespace perigee
