// What the property tests are told on their command line.
#pragma once

#include <string>

namespace perigee::test {

// The CPU kernels to run: a broken rule is broken in the plain code alone.
inline std::string g_cpu_kernels = "auto";
// More random traffic and longer sequences, for `make test-all`.
inline bool g_long = false;

}  // namespace perigee::test
