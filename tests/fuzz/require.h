// Ends the process where a fuzzed property is broken, so that libFuzzer keeps the input.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace perigee {

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

}  // namespace perigee
