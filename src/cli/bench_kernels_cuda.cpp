#include "cli/bench_kernels_cuda.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <fstream>

#include "base/error.h"
#include "commit.h"
#ifdef PERIGEE_HAVE_CUDA
#include "bench/gpu/benches.h"
#include "engine/backends.h"
#endif

namespace perigee::cli {

#ifdef PERIGEE_HAVE_CUDA

std::vector<std::string> cuda_bench_names() { return cuda::bench::bench_names(); }

int run_cuda_kernels(const std::vector<std::string>& only, bool json, const std::string& out) {
  make_backend("cuda", "auto", 1, false);  // says what is missing, if anything
  const std::string date = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
  const std::string text = cuda::bench::run_benches(only, PERIGEE_COMMIT, date, !json);
  if (json) fmt::print("{}", text);
  if (out.empty()) return 0;
  std::ofstream file(out);
  file << text;
  if (!file.flush()) fail(ErrorCode::kUsage, "--out {}: cannot be written", out);
  return 0;
}

#else

std::vector<std::string> cuda_bench_names() { return {}; }

int run_cuda_kernels(const std::vector<std::string>&, bool, const std::string&) {
  fail(
      ErrorCode::kUsage,
      "--device cuda: this binary was built without CUDA; build on a machine with nvcc, or use --device cpu");
}

#endif

}  // namespace perigee::cli
