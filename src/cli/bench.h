// The measurements of `perigee bench`, one file each; bench.cpp lists them.
#pragma once

#include "cli/commands.h"

namespace perigee::cli {

void add_bench_latency(CLI::App& bench, Action& run);
void add_bench_throughput(CLI::App& bench, Action& run);
void add_bench_kernels(CLI::App& bench, Action& run);
void add_bench_serve(CLI::App& bench, Action& run);

}  // namespace perigee::cli
