// The stages on CUDA devices, as far as they exist: each takes the arguments of ops/ops.h, with pointers to
// device memory inside and the spans themselves on the host, and enqueues its work on `stream`.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/ops.h"

namespace perigee::cuda {

// At most 8 banks; hidden a multiple of 8, at most 8,192; every tensor aligned to 16 bytes.
void attn_res_mix(const AttnResMixArgs& args, cudaStream_t stream);

}  // namespace perigee::cuda
