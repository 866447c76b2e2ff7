// A load generator's client: many streamed API requests at once over plain HTTP, each begun at its time, all
// on one thread. It measures when the pieces of each answer come, as `vllm bench serve` does.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace perigee::cli {

struct LoadTarget {
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string path = "/v1/completions", api_key;
};

struct LoadResult {
  bool ok = false;
  std::string error;
  double sent = 0;             // seconds since the start of the run
  double first = 0, last = 0;  // piece of the answer, after `sent`
  std::vector<double> gaps;    // between pieces
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  std::string text;  // of the answer, reasoning left out
};

// A request's body, made when it is sent: a later turn holds the answers before it.
struct LoadItem {
  double due = 0;  // seconds after the start of the run, or after `after` is answered
  std::optional<size_t> after;
  std::function<std::string(const std::vector<LoadResult>&)> body;
};

// Sends every item, at most `concurrency` at once. Results in the order of the items.
std::vector<LoadResult> run_load(const LoadTarget& target, const std::vector<LoadItem>& items,
                                 int concurrency, const std::function<void(size_t done)>& progress);

// One request outside the measurement: status and body. Throws Error{kUsage} naming --base-url when nobody
// answers.
std::pair<int, std::string> http_get(const LoadTarget& target, const std::string& path);

}  // namespace perigee::cli
