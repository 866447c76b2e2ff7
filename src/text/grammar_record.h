// A Grammar as JSON and back, rule by rule: for event logs, which keep what an answer had to be.
//   {"rules":[[[kind, value, kind, value, …], … alternatives], …],"sets":[[first byte, last byte, …], …]}
#pragma once

#include <boost/json/object.hpp>

#include "text/grammar.h"

namespace perigee {

boost::json::object grammar_record(const Grammar& grammar);
// Throws Error{kBadFile} for what is no such record.
Grammar grammar_from_record(const boost::json::object& record);

}  // namespace perigee
