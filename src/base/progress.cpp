#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace perigee {

Progress::Progress(std::string what, int64_t total, double unit_scale, std::string unit)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      total_(total),
      scale_(unit_scale),
      terminal_(isatty(STDERR_FILENO) != 0),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

Progress::~Progress() {
  if (terminal_ && last_ != start_) fmt::print(stderr, "\r\033[K");
}

void Progress::advance(int64_t amount) {
  done_ += amount;
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - start_).count();
  if (seconds < 0.5 || total_ <= 0) return;  // short work needs no display
  const int tenth = static_cast<int>(done_ * 10 / total_);
  if (terminal_) {
    if (now - last_ < std::chrono::milliseconds(100) && done_ < total_) return;
    last_ = now;
    constexpr int kWidth = 30;
    const int full = static_cast<int>(done_ * kWidth / total_);
    fmt::print(stderr, "\r\033[K{} [{:#<{}}{:.<{}}] {:.0f}/{:.0f} {} {:.1f} s", what_, "", full, "",
               kWidth - full, static_cast<double>(done_) / scale_, static_cast<double>(total_) / scale_,
               unit_, seconds);
  } else if (tenth > last_tenth_) {
    last_tenth_ = tenth;
    fmt::print(stderr, "{}: {} %\n", what_, tenth * 10);
  }
}

}  // namespace perigee
