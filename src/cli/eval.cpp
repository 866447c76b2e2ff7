// perigee eval: a model's scores on the held-out questions beside it, greedy decoding.
#include <fmt/format.h>

#include "base/progress.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/eval_suite.h"
#include "cli/flags.h"
#include "cli/json.h"

namespace perigee::cli {

namespace {

struct Flags {
  ModelFlags model;
  std::vector<std::string> suites;
  std::string control = "none";
  int concurrency = 16, limit = 0, show_failures = 0;
  bool json = false;
};

struct Score {
  int correct = 0, n = 0;
  double accuracy() const { return n ? static_cast<double>(correct) / n : 0.0; }
};

Score run_suite(const Flags& f, Runner& runner, const ChatModel& chat, EvalSuite& suite) {
  if (f.limit > 0 && suite.items.size() > static_cast<size_t>(f.limit)) suite.items.resize(f.limit);
  std::vector<GenerateRequest> requests;
  for (const EvalItem& item : suite.items) {
    ChatOptions options;
    options.thinking = item.thinking;
    if (!item.tools.empty()) options.tools = &item.tools;
    requests.push_back({.prompt = chat.prompt(item.messages, options),
                        .sampling = {.temperature = 0.0f},
                        .max_tokens = item.max_tokens,
                        .stop_ids = chat.stop_ids(runner.config())});
  }
  Progress progress(suite.name, static_cast<int64_t>(requests.size()), 1, "questions");
  GenerateOptions options;
  options.concurrency = f.concurrency;
  options.on_finished = [&](size_t, const Generation&) { progress.advance(1); };
  const std::vector<Generation> answers = generate(runner, requests, options);
  Score score;
  int shown = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    // The control judges every answer by the next question's: it must fail, or the suite tests nothing.
    const EvalItem& judge = suite.items[f.control == "swap" ? (i + 1) % suite.items.size() : i];
    const ParsedMessage message = chat.parse(answers[i], suite.items[i].thinking);
    const bool correct = is_correct(message, judge.answer);
    score.correct += correct;
    ++score.n;
    if (!correct && shown++ < f.show_failures) {
      fmt::print(stderr, "{}: expected {}\n  got {}\n", judge.id, boost::json::serialize(judge.answer),
                 describe(message));
    }
  }
  return score;
}

int run_eval(const Flags& f) {
  std::vector<EvalSuite> suites = load_suites(f.model.model, f.suites);
  const ChatModel chat(f.model.model);
  Runner runner = f.model.load();
  chat.check_fits(runner.config());
  boost::json::array rows;
  for (EvalSuite& suite : suites) {
    const Score score = run_suite(f, runner, chat, suite);
    rows.push_back({{"name", suite.name}, {"accuracy", score.accuracy()}, {"n", score.n}});
    if (!f.json)
      fmt::print("{:<12} {:>6.1f} %  ({} of {})\n", suite.name, 100 * score.accuracy(), score.correct,
                 score.n);
  }
  if (f.json) {
    fmt::print("{}\n", json_text(boost::json::object{{"model", f.model.model},
                                                     {"suites", std::move(rows)},
                                                     {"control", f.control},
                                                     {"numerics", runner.numerics().digest}}));
  }
  return 0;
}

}  // namespace

void add_eval(CLI::App& app, Action& run) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("eval", "scores on held-out questions");
  flags->model.add_to(*sub);
  sub->add_option("SUITE", flags->suites, "suites to run; all when none is named");
  sub->add_option("--control", flags->control,
                  "swap: judge each answer by the next question's (must score near 0)")
      ->check(CLI::IsMember({"none", "swap"}));
  sub->add_option("--concurrency", flags->concurrency, "questions running at once")
      ->check(CLI::Range(1, 256));
  sub->add_option("--limit", flags->limit, "only the first questions of each suite")
      ->check(CLI::Range(1, 1 << 30));
  sub->add_option("--show-failures", flags->show_failures, "print this many wrong answers per suite")
      ->check(CLI::Range(0, 1 << 30));
  sub->add_flag("--json", flags->json, "one JSON object on stdout");
  sub->callback([flags, &run] { run = [flags] { return run_eval(*flags); }; });
}

}  // namespace perigee::cli
