// perigee bench: the group of measurements.
#include "cli/bench.h"

namespace perigee::cli {

void add_bench(CLI::App& app, Action& run) {
  CLI::App* bench = app.add_subcommand("bench", "measurements");
  bench->require_subcommand(1);
  add_bench_latency(*bench, run);
  add_bench_throughput(*bench, run);
  add_bench_kernels(*bench, run);
  add_bench_serve(*bench, run);
}

}  // namespace perigee::cli
