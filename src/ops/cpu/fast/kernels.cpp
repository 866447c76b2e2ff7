#include "ops/cpu/fast/kernels.h"

#include "ops/cpu/fast/matrix_kernels.h"
#include "ops/cpu/fast/sequence_kernels.h"

namespace perigee::cpu {

const Kernels* find_kernels(const std::string& name) {
  static const Kernels kAvx2{"avx2", &avx2::matrix_kernels, &avx2::sequence_kernels};
  static const Kernels kAvx512{"avx512", &avx512::matrix_kernels, &avx512::sequence_kernels};
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
#ifdef PERIGEE_TEST_HOOKS
  static const Kernels kEmulated{"avx512-emulated", &avx512_emulated::matrix_kernels,
                                 &avx512_emulated::sequence_kernels};
  if (name == kEmulated.name && has_avx2) return &kEmulated;
#endif
  if (name == "avx2" && has_avx2) return &kAvx2;
  if (name == "avx512" && has_avx512) return &kAvx512;
  return nullptr;
}

const Kernels* best_kernels() {
  const Kernels* wide = find_kernels("avx512");
  return wide ? wide : find_kernels("avx2");
}

}  // namespace perigee::cpu
