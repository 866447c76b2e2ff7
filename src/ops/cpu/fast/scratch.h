// Workspace of the fast stages: one arena a thread, so that no task allocates once the largest has run. What
// tasks share is taken by the thread that starts the loop, before it starts.
#pragma once

#include "base/arena.h"

namespace perigee::cpu {

inline Arena& thread_arena() {
  thread_local Arena arena;
  return arena;
}

}  // namespace perigee::cpu
