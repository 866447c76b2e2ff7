// How long an answer took: from the request to its first token, and from there to its last.
#pragma once

#include <chrono>

namespace perigee::cli {

class AnswerClock {
 public:
  void token() {
    last_ = Clock::now();
    if (tokens_++ == 0) first_ = last_;
  }
  // Without a token, the time until now.
  double prefill_seconds() const { return seconds(start_, tokens_ ? first_ : Clock::now()); }
  double decode_seconds() const { return tokens_ ? seconds(first_, last_) : 0; }
  double decode_tokens_per_s() const { return decode_seconds() > 0 ? (tokens_ - 1) / decode_seconds() : 0; }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds(Clock::time_point a, Clock::time_point b) {
    return std::chrono::duration<double>(b - a).count();
  }
  Clock::time_point start_ = Clock::now(), first_, last_;
  int tokens_ = 0;
};

}  // namespace perigee::cli
