// What this machine can do at best, measured in the same call as the figures that are held against it: how
// fast all threads together read memory, and how fast they multiply and add in registers. No program reads or
// computes faster, so a figure's share of its ceiling says how much is left to gain.
#pragma once

#include <cstdint>
#include <string>

#include "base/memory.h"
#include "base/thread_pool.h"
#include "model/weights_memory.h"

namespace perigee::cli {

struct Ceilings {
  double read_bytes_per_s = 0;  // of a buffer far larger than the caches
  // The identity's bf16 pair product fma(x₀, y₀, fma(x₁, y₁, acc)) on operands that never leave the
  // registers: vdpbf16ps where the CPU has it, else two fp32 fused multiply-adds on operands that are widened
  // already. A multiply-add counts as two operations.
  double dpbf16_flop_per_s = 0;
  std::string instruction;  // behind dpbf16_flop_per_s
};

// A GPU's: bytes read and written of a large copy, measured, and the rate of a large bf16 product on an H200
// (790 TFLOP/s), which is not.
Ceilings device_ceilings(Memory& memory);

// The higher of each.
Ceilings higher(const Ceilings& a, const Ceilings& b);

// Measures whenever it is asked, the best of some rounds, and keeps the best of all times: other programs can
// only slow it down.
class CeilingMeter {
 public:
  explicit CeilingMeter(int threads);

  Ceilings measure();
  const Ceilings& best() const { return best_; }
  static std::string dpbf16_instruction();

  // Fills every cache with other data, as a whole model step does between two uses of the same weights.
  void evict_caches();

 private:
  double read_once(int streams, int64_t bytes);
  double multiply_once();

  int threads_;
  ThreadPool pool_;
  Region buffer_;
  Ceilings best_;
};

}  // namespace perigee::cli
