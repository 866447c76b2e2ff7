#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace perigee {

StopStrings::StopStrings(std::vector<std::string> stops, bool include)
    : stops_(std::move(stops)), include_(include) {
  for (const std::string& stop : stops_) {
    if (stop.empty())
      fail(ErrorCode::kBadRequest, "stop: an empty string would end every answer; leave it out");
  }
}

std::string StopStrings::push(std::string_view piece) {
  if (!found_.empty()) return "";
  std::string text = std::exchange(held_, {});
  text += piece;
  // The stop that is complete first wins, however the text was cut.
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = text.find(stop);
    if (at == std::string::npos) continue;
    const size_t here = at + stop.size();
    if (here < end || (here == end && stop.size() > found_.size())) {
      end = here;
      found_ = stop;
    }
  }
  if (end != std::string::npos) return text.substr(0, include_ ? end : end - found_.size());
  // The longest tail that begins a stop stays here.
  size_t hold = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, text.size()); n > hold; --n) {
      if (text.ends_with(std::string_view(stop).substr(0, n))) hold = n;
    }
  }
  held_ = text.substr(text.size() - hold);
  text.resize(text.size() - hold);
  return text;
}

std::string StopStrings::push_unchecked(std::string_view piece) {
  if (!found_.empty()) return "";
  return std::exchange(held_, {}) += piece;
}

std::string StopStrings::flush() { return std::exchange(held_, {}); }

}  // namespace perigee
