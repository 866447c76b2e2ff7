// perigee replay: runs an event log again and compares every step and every bit of its logits.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "cli/engine_flags.h"
#include "cli/json.h"
#include "cli/validators.h"
#include "serve/structured_output.h"
#include "text/tokenizer.h"

namespace perigee::cli {

namespace {

struct Flags {
  std::string log, model;
  int threads = 0;
  bool json = false;
};

int64_t count_steps(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  int64_t steps = 0;
  for (std::string line; std::getline(in, line);) steps += line.starts_with("{\"step\"");
  return steps;
}

int run_replay(const Flags& f) {
  std::ifstream in(f.log, std::ios::binary);
  if (!in) fail(ErrorCode::kBadFile, "{}: cannot be read: {}", f.log, std::strerror(errno));
  boost::json::object header = read_log_header(in, f.log);
  if (!f.model.empty()) header["model"] = f.model;
  Progress progress("replay", count_steps(f.log), 1, "steps");
  std::optional<EngineRun> run;
  std::shared_ptr<const TokenTree> tokens;  // made when the first constraint is read
  const ReplayReport report =
      replay(in, f.log, header,
             {.make_engine = [&](EventLog& log) -> Engine& {
                try {
                  return run.emplace(header, f.log, f.threads, log).engine();
                } catch (const Error& e) {  // the header's fault, not a flag's
                  fail(ErrorCode::kBadFile, "{}: {}", f.log, e.what());
                }
              },
              .read_constraint =
                  [&](const boost::json::object& record) {
                    if (!tokens) {
                      const std::string folder(header.at("model").as_string());
                      tokens = std::make_shared<TokenTree>(Tokenizer::load(folder).vocabulary());
                    }
                    return serve::read_constraint(record, tokens);
                  },
              .on_step = [&](const ReplayReport&) { progress.advance(1); }});
  const bool same = report.difference.empty();
  if (f.json) {
    fmt::print("{}\n", json_text(boost::json::object{{"requests", report.requests},
                                                     {"steps", report.steps},
                                                     {"same", same},
                                                     {"difference", report.difference},
                                                     {"cut", report.cut}}));
  } else if (same) {
    fmt::print("{} requests, {} steps: the same steps and the same bits\n", report.requests, report.steps);
  }
  if (report.cut && same)
    fmt::print(stderr, "{}: has no end: its writer was killed, or lines are missing\n", f.log);
  if (!same) fmt::print(stderr, "not the same from step {} on:\n{}\n", report.steps, report.difference);
  return same ? 0 : 1;
}

}  // namespace

void add_replay(CLI::App& app, Action& run) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("replay", "run a recorded event log again; the same steps and bits");
  sub->add_option("LOG", flags->log, "a file that --record wrote")->required()->check(not_empty());
  sub->add_option("--model", flags->model, "the model's folder, if it has moved");
  sub->add_option("--threads", flags->threads, "CPU threads; 0 takes all")->transform(whole_number(0, 1024));
  sub->add_flag("--json", flags->json, "one JSON object on stdout");
  sub->callback([flags, &run] { run = [flags] { return run_replay(*flags); }; });
}

}  // namespace perigee::cli
