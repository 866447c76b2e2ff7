// Stages that have no kernel yet.
#include "base/error.h"
#include "ops/cuda/backend.h"

namespace perigee::cuda {

#define UNWRITTEN(stage, Args) \
  void CudaBackend::stage(const Args&) { fail(ErrorCode::kUnsupported, "{} has no CUDA kernel yet", #stage); }

UNWRITTEN(mla_project, MlaProjectArgs)
UNWRITTEN(index_front, IndexFrontArgs)
UNWRITTEN(mla_query, MlaQueryArgs)
UNWRITTEN(index_select, IndexSelectArgs)
UNWRITTEN(sparse_attend, AttendArgs)
UNWRITTEN(dense_attend, AttendArgs)
UNWRITTEN(mla_output, MlaOutputArgs)

}  // namespace perigee::cuda
