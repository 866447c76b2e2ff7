// Which CPU kernels the property tests run (--cpu-kernels=NAME): "auto" unless told; a broken rule is broken
// in the plain code alone.
#pragma once

#include <string>

namespace perigee::test {

inline std::string g_cpu_kernels = "auto";

}  // namespace perigee::test
