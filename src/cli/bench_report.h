// What every `perigee bench` command reports: the machine, the commit, the ceilings of this very call, and
// rows of figures, each beside the limit that the ceilings set. One JSON object, on stdout or in a file.
#pragma once

#include <boost/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/ceilings.h"
#include "model/step_cost.h"

namespace perigee::cli {

// The fastest that the ceilings allow: bandwidth or arithmetic, whichever takes longer.
struct Limit {
  double seconds = 0;
  bool by_bandwidth = false;
  const char* name() const { return by_bandwidth ? "read_bandwidth" : "dpbf16_rate"; }
};
Limit limit_of(const Cost& cost, const Ceilings& ceilings);

struct BenchRow {
  std::string name;
  double value = 0;
  std::string unit;
  std::optional<double> limit;    // of value, in the same unit
  std::string limit_by;           // the row that sets it
  std::string peer;               // what the value is compared with, e.g. "plain"
  double peer_value = 0;          // when there is a peer
  boost::json::object details{};  // further fields of the row
};

class BenchReport {
 public:
  // Reads the load average, so that it speaks of the time before the measurement.
  BenchReport(std::string model, int threads, std::string kernels, std::string numerics);

  void add(BenchRow row) { rows_.push_back(std::move(row)); }
  // Adds the rows read_bandwidth and dpbf16_rate.
  void add_ceilings(const Ceilings& ceilings);

  // "CPU name, 2 threads, kernels avx2, load average 0.1"
  std::string headline() const;
  const std::vector<BenchRow>& rows() const { return rows_; }
  boost::json::object json() const;
  // Writes the JSON to `file`, unless that is empty; throws Error{kUsage} naming --out.
  void write(const std::string& file) const;

  boost::json::object settings;  // what the command was asked to measure

 private:
  std::string model_, kernels_, numerics_;
  int threads_;
  double load_average_;
  std::vector<BenchRow> rows_;
};

// Throws what BenchReport::write would, before the time is spent that the figures take; changes no file.
void check_writable(const std::string& file);

// The middle of the values, and what a row tells of their spread.
double median(std::vector<double> values);
boost::json::object spread(const std::vector<double>& values);

}  // namespace perigee::cli
