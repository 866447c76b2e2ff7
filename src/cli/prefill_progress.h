// The progress display of a prompt that is being read, gone before the answer begins.
#pragma once

#include <optional>
#include <utility>

#include "base/progress.h"

namespace perigee::cli {

class PrefillProgress {
 public:
  explicit PrefillProgress(size_t tokens)
      : progress_(std::in_place, "reading the prompt", static_cast<int64_t>(tokens), 1, "tokens") {}

  void show(int64_t done) { progress_->advance(done - std::exchange(shown_, done)); }
  void end() { progress_.reset(); }

 private:
  std::optional<Progress> progress_;
  int64_t shown_ = 0;
};

}  // namespace perigee::cli
