#include "ops/cuda/require.h"

#include "base/error.h"

namespace perigee::cuda {

void require(bool holds, const char* what, int64_t value, const char* allowed) {
  if (holds) return;
  fail(ErrorCode::kUnsupported, "{} {}, but the CUDA stage takes {}; use --device cpu", what, value, allowed);
}

}  // namespace perigee::cuda
