// perigee bench kernels --device cuda: the benches of bench/gpu.
#pragma once

#include <string>
#include <vector>

namespace perigee::cli {

// What --only takes; none in a build without CUDA.
std::vector<std::string> cuda_bench_names();

// Runs the benches named, all when none is; a table as it grows, or JSON on stdout, and JSON in `out` unless
// that is empty. Throws Error{kUsage} without a GPU or in a build without CUDA.
int run_cuda_kernels(const std::vector<std::string>& only, bool json, const std::string& out);

}  // namespace perigee::cli
