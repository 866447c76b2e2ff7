// The element-wise parts of the KDA stages on CUDA devices.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/step_tables.h"
#include "ops/ops.h"

namespace perigee::cuda {

void launch_kda_conv(const KdaConvArgs& args, const RowsView& rows, const SlotView* slots,
                     cudaStream_t stream);
// y = rms(o; o_norm) ⊙ σ(gate) → bf16 [R, D].
void launch_kda_norm_gate(const KdaOutputArgs& args, bf16* y, cudaStream_t stream);

}  // namespace perigee::cuda
