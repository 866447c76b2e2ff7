// The event log of an engine: everything that entered, in its place between the steps, and what each step
// computed. An engine of the same identity and options that is told the same gives the same log, line for
// line; `replay` does that and compares. One JSON object a line:
//   {"perigee_log":1, …}                           the header
//   {"submit":1,"request":{…}}, {"cancel":1,"branch":-1}, {"reset_prefix_cache":1}
//   {"step":0,"rows":[[request,branch,first position,tokens,forks,drafts…],…],"logits":"<checksum>"}
//   {"end":12}                                     how many steps there were
#pragma once

#include <boost/json/object.hpp>
#include <functional>
#include <istream>
#include <span>
#include <string>

#include "engine/request_json.h"
#include "engine/scheduler.h"

namespace perigee {

class Engine;

class EventLog {
 public:
  using Sink = std::function<void(const std::string& line)>;  // without its end

  // `header` says what a replay needs to build the same engine.
  EventLog(Sink sink, boost::json::object header);
  // Into a file, whole lines at once. Throws Error{kBadFile} when it cannot be made.
  static Sink to_file(const std::string& path);
  // Writes the last line; a log without it is not whole.
  ~EventLog();
  EventLog(const EventLog&) = delete;

  void submit(RequestId id, const Request& request);
  void cancel(RequestId id, int branch);
  void reset_prefix_cache();
  void step(const StepPlan& plan, std::span<const float> logits);

 private:
  void write(const boost::json::object& line) const;

  Sink sink_;
  int64_t steps_ = 0;
};

// The header of a log. Throws Error{kBadFile} when the first line is none.
boost::json::object read_log_header(std::istream& log, const std::string& name);

struct ReplayReport {
  int64_t requests = 0, steps = 0;
  bool cut = false;        // no end: the writer was killed, or lines are missing
  std::string difference;  // of the first line that came out otherwise; empty: the same steps and bits
};

// What a replay needs of the caller.
struct ReplayHooks {
  std::function<Engine&(EventLog&)> make_engine;  // which must write to this log
  ReadConstraint read_constraint = nullptr;       // where requests have constraints
  std::function<void(const ReplayReport&)> on_step = {};
};

// Replays the lines after the header.
ReplayReport replay(std::istream& log, const std::string& name, const boost::json::object& header,
                    const ReplayHooks& hooks);

}  // namespace perigee
