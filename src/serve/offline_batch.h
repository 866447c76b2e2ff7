// A file of requests to a file of answers, in the form of OpenAI's batches. The requests go through the very
// Api that a server has, only that no socket is between.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "serve/api.h"

namespace perigee::serve {

struct OfflineBatchOptions {
  std::string requests;     // {"custom_id", "method", "url", "body"} a line
  std::string answers;      // {"id", "custom_id", "response", "error"} a line, in the order they are ready
  std::string fingerprint;  // system_fingerprint of the answers
  int64_t in_flight = 128;  // handed to the API at once
  std::function<void(int64_t done, int64_t all)> on_progress = [](int64_t, int64_t) {};
};

struct OfflineBatchReport {
  int64_t requests = 0;
  int64_t kept = 0;      // had their answer already
  int64_t answered = 0;  // with status 200
  int64_t failed = 0;    // with another status, or as lines that are no request
};

// Answers every request that has no answer yet; a line that is no request becomes an answer that says so.
// Throws Error{kBadFile} for a file that cannot be read or written, or answers of other requests.
OfflineBatchReport run_offline_batch(Api& api, const OfflineBatchOptions& options);

}  // namespace perigee::serve
