#include "cli/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "cli/json.h"
#include "commit.h"

namespace perigee::cli {

namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

std::string utc_now() {
  char text[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(text, sizeof text, "%FT%TZ", std::gmtime(&now));
  return text;
}

[[noreturn]] void fail_to_write(const std::string& file) {
  fail(ErrorCode::kUsage, "--out {}: cannot be written: {}; name a file in a folder that is there", file,
       errno ? std::strerror(errno) : "the disk may be full");
}

double load_average() {
  double load[1];
  return getloadavg(load, 1) < 1 ? -1 : load[0];
}

}  // namespace

Limit limit_of(const Cost& cost, const Ceilings& ceilings) {
  const double read = cost.bytes / ceilings.read_bytes_per_s,
               compute = cost.flops / ceilings.dpbf16_flop_per_s;
  return {.seconds = std::max(read, compute), .by_bandwidth = read >= compute};
}

BenchReport::BenchReport(std::string model, int threads, std::string kernels, std::string numerics)
    : model_(std::move(model)),
      kernels_(std::move(kernels)),
      numerics_(std::move(numerics)),
      threads_(threads),
      load_average_(load_average()) {}

void BenchReport::add_ceilings(const Ceilings& ceilings) {
  add({.name = "read_bandwidth", .value = ceilings.read_bytes_per_s / 1e9, .unit = "GB/s"});
  add({.name = "dpbf16_rate",
       .value = ceilings.dpbf16_flop_per_s / 1e9,
       .unit = "GFLOP/s",
       .details = {{"instruction", ceilings.instruction}}});
}

std::string BenchReport::headline() const {
  return fmt::format("{}, {} threads, kernels {}, load average {:.1f}", cpu_name(), threads_, kernels_,
                     load_average_);
}

boost::json::object BenchReport::json() const {
  boost::json::array rows;
  for (const BenchRow& r : rows_) {
    boost::json::object row{{"name", r.name}, {"value", r.value}, {"unit", r.unit}};
    row["limit"] = r.limit ? boost::json::value(*r.limit) : nullptr;
    row["limit_by"] = r.limit ? boost::json::value(r.limit_by) : nullptr;
    row["peer"] = r.peer.empty() ? boost::json::value(nullptr) : boost::json::value(r.peer);
    row["peer_value"] = r.peer.empty() ? boost::json::value(nullptr) : boost::json::value(r.peer_value);
    for (const auto& [key, value] : r.details) row[key] = value;
    rows.push_back(std::move(row));
  }
  return {{"hardware", fmt::format("{}, {} threads", cpu_name(), threads_)},
          {"commit", PERIGEE_COMMIT},
          {"date", utc_now()},
          {"model", model_},
          {"kernels", kernels_},
          {"load_average", load_average_},
          {"numerics", numerics_},
          {"settings", settings},
          {"rows", std::move(rows)}};
}

void BenchReport::write(const std::string& file) const {
  if (file.empty()) return;
  errno = 0;
  std::ofstream out(file);
  out << json_text(json()) << "\n";
  out.close();  // what is left in the buffer may be what the disk has no room for
  if (!out) fail_to_write(file);
}

void check_writable(const std::string& file) {
  if (file.empty()) return;
  std::error_code ignored;  // opening says it better
  const std::filesystem::file_type type = std::filesystem::status(file, ignored).type();
  if (type == std::filesystem::file_type::fifo) return;  // its reader would take the check for the end
  const bool is_new = !std::filesystem::exists(std::filesystem::symlink_status(file, ignored));
  errno = 0;
  if (!std::ofstream(file, std::ios::app)) fail_to_write(file);
  if (is_new) std::filesystem::remove(file, ignored);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

boost::json::object spread(const std::vector<double>& values) {
  return {{"runs", values.size()},
          {"min", *std::min_element(values.begin(), values.end())},
          {"max", *std::max_element(values.begin(), values.end())}};
}

}  // namespace perigee::cli
