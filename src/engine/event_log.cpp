#include "engine/event_log.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>

#include "base/error.h"
#include "cache/checksum.h"
#include "engine/engine.h"
#include "engine/request_json.h"

namespace perigee {

namespace {

std::string digest(std::span<const float> logits) {
  uint64_t hash = kChecksumStart;
  for (float x : logits) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    hash = (hash ^ bits) * kChecksumPrime;
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace

EventLog::EventLog(Sink sink, boost::json::object header) : sink_(std::move(sink)) {
  boost::json::object line{{"perigee_log", 1}};
  for (auto& [key, value] : header) line[key] = std::move(value);
  write(line);
}

EventLog::Sink EventLog::to_file(const std::string& path) {
  auto file = std::make_shared<std::ofstream>(path, std::ios::binary);
  if (!*file)
    fail(ErrorCode::kBadFile, "{}: cannot be made: {}; give a path that can be written", path,
         std::strerror(errno));
  return [file, path](const std::string& line) {
    *file << line << '\n' << std::flush;
    if (!*file)
      fail(ErrorCode::kBadFile, "{}: cannot be written: {}; the log is not whole", path,
           std::strerror(errno));
  };
}

EventLog::~EventLog() {
  try {
    write({{"end", steps_}});
  } catch (const Error&) {  // said when the line before could not be written
  }
}

void EventLog::write(const boost::json::object& line) const { sink_(boost::json::serialize(line)); }

void EventLog::submit(RequestId id, const Request& request) {
  write({{"submit", id}, {"request", request_json(request)}});
}

void EventLog::cancel(RequestId id, int branch) { write({{"cancel", id}, {"branch", branch}}); }

void EventLog::reset_prefix_cache() { write({{"reset_prefix_cache", 1}}); }

void EventLog::step(const StepPlan& plan, std::span<const float> logits) {
  boost::json::array rows;
  for (const ScheduledRows& r : plan.rows) {
    boost::json::array row{r.request, r.branch, r.start, r.tokens, r.forks};
    for (int32_t draft : r.drafts) row.push_back(draft);
    rows.push_back(std::move(row));
  }
  write({{"step", steps_++}, {"rows", std::move(rows)}, {"logits", digest(logits)}});
}

boost::json::object read_log_header(std::istream& log, const std::string& name) {
  std::string line;
  boost::system::error_code error;
  if (std::getline(log, line)) {
    const boost::json::value header = boost::json::parse(line, error);
    if (!error && header.is_object() && header.as_object().contains("perigee_log")) {
      const boost::json::value& version = header.as_object().at("perigee_log");
      if (version != 1) {
        fail(ErrorCode::kBadFile, "{}: a log of version {}, but this build reads version 1", name,
             boost::json::serialize(version));
      }
      return header.as_object();
    }
  }
  fail(ErrorCode::kBadFile, "{}: its first line is not the header of a perigee log; record one with --record",
       name);
}

ReplayReport replay(std::istream& in, const std::string& name, const boost::json::object& header,
                    const ReplayHooks& hooks) {
  ReplayReport report;
  std::string produced;
  EventLog log([&](const std::string& line) { produced = line; }, header);
  Engine& engine = hooks.make_engine(log);
  std::string line;
  report.cut = true;  // until its end is seen
  for (int64_t number = 2; report.difference.empty() && std::getline(in, line); ++number) {
    if (in.eof()) break;  // a line without its end
    boost::system::error_code error;
    const boost::json::value value = boost::json::parse(line, error);
    const boost::json::object* event = error ? nullptr : value.if_object();
    const auto broken = [&](const std::string& what) {
      fail(ErrorCode::kBadFile, "{}, line {}: {}; the log is damaged", name, number, what);
    };
    if (!event) broken("is not a JSON object");
    produced.clear();
    if (const auto* request = event->if_contains("request"); request && request->is_object()) {
      try {
        engine.submit(request_from_json(request->as_object(), hooks.read_constraint));
      } catch (const Error& e) {
        broken(e.what());
      }
      ++report.requests;
    } else if (const auto* id = event->if_contains("cancel")) {
      const auto* branch = event->if_contains("branch");
      if (!id->is_int64() || !branch || !branch->is_int64()) broken("is not a cancellation");
      engine.cancel(id->as_int64(), static_cast<int>(branch->as_int64()));
    } else if (const auto* steps = event->if_contains("end")) {
      if (*steps != report.steps)
        broken(fmt::format("says that there were {} steps", boost::json::serialize(*steps)));
      report.cut = false;
      continue;
    } else if (event->contains("reset_prefix_cache")) {
      engine.reset_prefix_cache();
    } else if (event->contains("step")) {
      engine.step();
      ++report.steps;
      if (hooks.on_step) hooks.on_step(report);
    } else {
      broken("is no request, cancellation, reset, step or end");
    }
    engine.take_events();
    if (produced != line)
      report.difference =
          fmt::format("{}, line {}:\n  recorded {}\n  replayed {}", name, number, line, produced);
  }
  return report;
}

}  // namespace perigee
