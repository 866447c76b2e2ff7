// perigee eval: a model's scores on the held-out questions beside it, greedy decoding.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/progress.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/eval_suite.h"
#include "cli/flags.h"
#include "cli/json.h"
#include "cli/validators.h"

namespace perigee::cli {

namespace {

struct Flags {
  ModelFlags model;
  std::vector<std::string> suites;
  std::string control = "none", index = "model", poison = "none";
  int concurrency = 16, limit = 0, show_failures = 0;
  bool json = false;
};

struct Score {
  int correct = 0, n = 0;
  double accuracy() const { return n ? static_cast<double>(correct) / n : 0.0; }
};

// Prompt tokens between two times that --poison state zeroes the state: KDA chunks are 16 long.
constexpr int kPoisonEvery = 64;

// An item on its way through its turns.
struct Conversation {
  const EvalItem* item;
  const EvalItem* judge;  // whose answers it must give
  boost::json::array messages = {};
  std::vector<int32_t> prompt = {};
  bool right = true;
};

int64_t common_prefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return std::mismatch(a.begin(), a.begin() + std::min(a.size(), b.size()), b.begin()).first - a.begin();
}

// The assistant's message as its conversation remembers it; scripted tool results name the calls call_1, ….
boost::json::object remembered(const ParsedMessage& message) {
  boost::json::object out{{"role", "assistant"}, {"content", message.content}};
  if (!message.reasoning.empty()) out["reasoning_content"] = message.reasoning;
  boost::json::array calls = tool_calls_json(message);
  for (size_t i = 0; i < calls.size(); ++i) calls[i].as_object()["id"] = fmt::format("call_{}", i + 1);
  if (!calls.empty()) out["tool_calls"] = std::move(calls);
  return out;
}

class SuiteRun {
 public:
  SuiteRun(const Flags& flags, Runner& runner, const ChatModel& chat, const EvalSuite& suite)
      : flags_(flags),
        runner_(runner),
        chat_(chat),
        prefixes_(runner.pool(), {.debug = flags.model.debug_cache}),
        progress_(suite.name, static_cast<int64_t>(suite.items.size()), 1, "questions") {
    options_.scheduler.max_num_seqs = flags.concurrency;
    options_.scheduler.max_num_batched_tokens = batched_tokens(0, runner.memory(), flags.concurrency);
    options_.prefixes = &prefixes_;
    // One after another, so that the steps are cut there alone.
    if (flags.poison == "state")
      options_.scheduler = {.max_num_seqs = 1, .max_num_batched_tokens = kPoisonEvery};
    // The control judges every answer by the next question's: it must fail, or the suite tests nothing.
    for (size_t i = 0; i < suite.items.size(); ++i) {
      const EvalItem& judge = suite.items[flags.control == "swap" ? (i + 1) % suite.items.size() : i];
      if (groups_.empty() || groups_.back()[0].item->document != suite.items[i].document)
        groups_.push_back({});
      groups_.back().push_back({.item = &suite.items[i], .judge = &judge});
    }
  }

  Score run() {
    for (std::vector<Conversation>& group : groups_) {
      std::vector<Conversation*> going;
      for (Conversation& c : group) going.push_back(&c);
      for (size_t turn = 0; !going.empty(); ++turn) {
        step(going, turn);
        std::erase_if(going, [&](Conversation* c) { return !c->right || c->item->turns.size() == turn + 1; });
      }
      for (const Conversation& c : group) score_.correct += c.right;
      score_.n += static_cast<int>(group.size());
      progress_.advance(static_cast<int64_t>(group.size()));
    }
    return score_;
  }

 private:
  // Asks everybody's next turn and judges the answers.
  void step(const std::vector<Conversation*>& going, size_t turn) {
    std::vector<Request> requests;
    for (Conversation* c : going) {
      for (const boost::json::value& m : c->item->turns[turn].messages) c->messages.push_back(m);
      ChatOptions options;
      options.thinking = c->item->thinking;
      if (!c->item->tools.empty()) options.tools = &c->item->tools;
      c->prompt = chat_.prompt(c->messages, options);
    }
    if (turn == 0 && !going[0]->item->document.empty()) read_document(going);
    for (Conversation* c : going) {
      requests.push_back({.prompt = c->prompt,
                          .sampling = {.temperature = 0.0f},
                          .max_tokens = c->item->max_tokens,
                          .stop_ids = chat_.stop_ids(runner_.config())});
    }
    const std::vector<Generation> answers = generate(runner_, requests, options_);
    for (size_t i = 0; i < going.size(); ++i) judge(*going[i], turn, answers[i]);
  }

  // Computes what all prompts begin with once and leaves it in the prefix tree, where every question finds
  // it.
  void read_document(const std::vector<Conversation*>& going) {
    const std::vector<int32_t>& first = going[0]->prompt;
    int64_t shared = static_cast<int64_t>(first.size()) - 1;
    for (const Conversation* c : going) shared = std::min(shared, common_prefix(first, c->prompt));
    if (shared < 1) return;
    const std::vector<int32_t> document(first.begin(), first.begin() + shared);
    generate(runner_, {Request{.prompt = document, .sampling = {.temperature = 0.0f}, .max_tokens = 1}},
             options_);
  }

  void judge(Conversation& c, size_t turn, const Generation& answer) {
    const ParsedMessage message = chat_.parse(answer, c.item->thinking);
    const bool asked = turn < c.judge->turns.size();
    c.right = asked && is_correct(message, c.judge->turns[turn].answer);
    c.messages.push_back(remembered(message));
    if (c.right || shown_ >= flags_.show_failures) return;
    ++shown_;
    fmt::print(stderr, "{} turn {}: expected {}\n  got {}\n", c.judge->id, turn + 1,
               asked ? boost::json::serialize(c.judge->turns[turn].answer) : "nothing", describe(message));
  }

  const Flags& flags_;
  Runner& runner_;
  const ChatModel& chat_;
  PrefixTree prefixes_;
  Progress progress_;
  GenerateOptions options_;
  std::vector<std::vector<Conversation>> groups_;  // items that begin with the same document
  Score score_;
  int shown_ = 0;
};

int run_eval(const Flags& f) {
  std::vector<EvalSuite> suites = load_suites(f.model.model, f.suites);
  const ChatModel chat(f.model.model);
  Runner runner = f.model.load(f.concurrency);
  chat.check_fits(runner.config());
  if (f.index == "random" && !runner.config().dsa)
    fail(ErrorCode::kUsage, "--index random: {} has no DSA indexer to replace", f.model.model);
  runner.set_controls({.random_index = f.index == "random", .poison_state = f.poison == "state"});
  boost::json::array rows;
  for (EvalSuite& suite : suites) {
    if (f.limit > 0 && suite.items.size() > static_cast<size_t>(f.limit)) suite.items.resize(f.limit);
    const auto begin = std::chrono::steady_clock::now();
    const Score score = SuiteRun(f, runner, chat, suite).run();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    rows.push_back(
        {{"name", suite.name}, {"accuracy", score.accuracy()}, {"n", score.n}, {"seconds", seconds}});
    if (!f.json)
      fmt::print("{:<12} {:>6.1f} %  ({} of {})\n", suite.name, 100 * score.accuracy(), score.correct,
                 score.n);
  }
  if (f.json) {
    fmt::print("{}\n", json_text(boost::json::object{{"model", f.model.model},
                                                     {"suites", std::move(rows)},
                                                     {"control", f.control},
                                                     {"index", f.index},
                                                     {"poison", f.poison},
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
  sub->add_option("--index", flags->index,
                  "random: sparse attention reads keys drawn at random (long suites must score near 0)")
      ->check(CLI::IsMember({"model", "random"}));
  sub->add_option("--poison", flags->poison,
                  "state: zero the KDA state every 64 prompt tokens (suite `state` must fail)")
      ->check(CLI::IsMember({"none", "state"}));
  sub->add_option("--concurrency", flags->concurrency, "questions running at once")
      ->transform(whole_number(1, 256));
  sub->add_option("--limit", flags->limit, "only the first questions of each suite")
      ->transform(whole_number(1, 1 << 30));
  sub->add_option("--show-failures", flags->show_failures, "print this many wrong answers per suite")
      ->transform(whole_number(0, 1 << 30));
  sub->add_flag("--json", flags->json, "one JSON object on stdout");
  sub->callback([flags, &run] { run = [flags] { return run_eval(*flags); }; });
}

}  // namespace perigee::cli
