// Stages that have no kernel yet.
#include "base/error.h"
#include "ops/cuda/backend.h"

namespace perigee::cuda {

#define UNWRITTEN(stage, Args) \
  void CudaBackend::stage(const Args&) { fail(ErrorCode::kUnsupported, "{} has no CUDA kernel yet", #stage); }

UNWRITTEN(embed, EmbedArgs)
UNWRITTEN(lane_reduce, LaneReduceArgs)
UNWRITTEN(lm_head, LmHeadArgs)
UNWRITTEN(sample, SampleArgs)
UNWRITTEN(kda_project, KdaProjectArgs)
UNWRITTEN(kda_conv_norm_gate, KdaConvArgs)
UNWRITTEN(kda_chunk, KdaChunkArgs)
UNWRITTEN(kda_output, KdaOutputArgs)
UNWRITTEN(glu_mlp, GluMlpArgs)
UNWRITTEN(moe_route, MoeRouteArgs)
UNWRITTEN(moe_experts, MoeExpertsArgs)
UNWRITTEN(moe_combine, MoeCombineArgs)

}  // namespace perigee::cuda
