// The benches of the CUDA stages, by name.
#pragma once

#include <string>
#include <vector>

namespace perigee::cuda::bench {

std::vector<std::string> bench_names();

// Runs those named, all when none is, and returns their rows as JSON, with `commit` and `date` in it. A row
// is printed as soon as it is there if `print` says so. Throws Error{kUnsupported} without a GPU.
std::string run_benches(const std::vector<std::string>& names, const std::string& commit,
                        const std::string& date, bool print);

}  // namespace perigee::cuda::bench
