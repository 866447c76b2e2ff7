// The limits of attn_res_mix on CUDA devices, and the launch behind the checks of attn_res_mix.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/ops.h"

namespace perigee::cuda {

constexpr int kChunkColumns = 8;  // one 16-byte load
constexpr int kMaxBanks = 8;      // a row of every source is held in registers
constexpr int kMaxHidden = 8192;  // 512 threads of two chunks

void launch_attn_res_mix(const AttnResMixArgs& args, cudaStream_t stream);

}  // namespace perigee::cuda
