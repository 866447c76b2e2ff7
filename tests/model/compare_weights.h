// Compares two Weights of one config byte by byte.
#pragma once

#include <string>

#include "model/weights.h"

namespace perigee {

// Empty when equal, else the first member that differs.
std::string first_difference(const Weights& a, const Weights& b, const ModelConfig& config);

}  // namespace perigee
