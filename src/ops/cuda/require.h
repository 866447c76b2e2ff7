// require(): a stage's check of what its kernels can take, for files that nvcc compiles (base/error.h
// formats, which nvcc cannot).
#pragma once

#include <cstdint>

namespace perigee::cuda {

// Throws Error{kUnsupported} "<what> <value>, but the CUDA stage takes <allowed>; use --device cpu".
void require(bool holds, const char* what, int64_t value, const char* allowed);

}  // namespace perigee::cuda
