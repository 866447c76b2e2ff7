// Stop strings over a stream of text that arrives in pieces: a stop may be split anywhere, and no part of one
// is given out before it is certain that it is none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace perigee {

class StopStrings {
 public:
  // `include`: the stop string itself is part of the text. Empty stops are refused with Error{kBadRequest}.
  explicit StopStrings(std::vector<std::string> stops, bool include = false);

  // The text that may go out now. After a stop nothing more does.
  std::string push(std::string_view piece);
  // Text before this point can never belong to a stop: used while a minimum length is not reached.
  std::string push_unchecked(std::string_view piece);
  // The end of the stream: what was held back, since it became no stop.
  std::string flush();

  // The stop that ended the stream (the one complete first; of several at once the longest), or empty.
  const std::string& found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  bool include_;
  std::string held_;  // a proper prefix of some stop
  std::string found_;
};

}  // namespace perigee
