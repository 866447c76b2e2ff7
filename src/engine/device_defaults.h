// What suits a device, for who does not say.
#pragma once

#include <algorithm>

#include "base/memory.h"

namespace perigee {

// max_num_batched_tokens for `asked`, where 0 asks for what suits the device: 512 on a CPU; 4,096 on a GPU,
// whose products need many rows. Never less than max_num_seqs.
inline int batched_tokens(int asked, const Memory& memory, int max_num_seqs) {
  return std::max(asked ? asked : memory.on_host() ? 512 : 4096, max_num_seqs);
}

// SchedulerOptions::look_ahead: where the device computes while the host goes on.
inline bool looks_ahead(const Memory& memory) { return !memory.on_host(); }

}  // namespace perigee
