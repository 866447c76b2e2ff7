// attn_res_mix: what the kernel asks of its arguments.
#include "ops/cuda/attn_res_mix.h"

#include "base/error.h"
#include "ops/cuda/backend.h"

namespace perigee::cuda {
namespace {

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

void CudaBackend::attn_res_mix(const AttnResMixArgs& args) {
  if (args.banks.size() > kMaxBanks) {
    fail(ErrorCode::kUnsupported,
         "attn_res_mix: {} AttnRes banks, but the CUDA stage holds at most {}; use the CPU backend",
         args.banks.size(), kMaxBanks);
  }
  if (args.hidden < 1 || args.hidden % kChunkColumns != 0 || args.hidden > kMaxHidden) {
    fail(ErrorCode::kUnsupported,
         "attn_res_mix: hidden size {}, but the CUDA stage takes multiples of {} up to {}; use the CPU "
         "backend",
         args.hidden, kChunkColumns, kMaxHidden);
  }
  bool all_aligned = aligned(args.stream) && aligned(args.norm) && aligned(args.out) && aligned(args.score);
  for (const bf16* bank : args.banks) all_aligned = all_aligned && aligned(bank);
  check(all_aligned, "attn_res_mix: a pointer is not aligned to 16 bytes");
  if (args.rows > 0) launch_attn_res_mix(args, stream());
}

}  // namespace perigee::cuda
