// A one-line progress display on stderr: a bar on a terminal, a line every ten percent elsewhere. stdout
// stays clean.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace perigee {

class Progress {
 public:
  // `unit_scale` divides counts for display, e.g. {"loading weights", total_bytes, 1e6, "MB"}.
  Progress(std::string what, int64_t total, double unit_scale = 1.0, std::string unit = "");
  ~Progress();
  void advance(int64_t amount);

 private:
  std::string what_, unit_;
  int64_t total_, done_ = 0;
  double scale_;
  bool terminal_;
  int last_tenth_ = 0;
  std::chrono::steady_clock::time_point start_, last_;
};

}  // namespace perigee
