// perigee chat: a conversation in the terminal, streamed, thinking dimmed. Ctrl-C stops the answer, not the
// program.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "cli/answer_clock.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/flags.h"
#include "cli/prefill_progress.h"
#include "cli/streams.h"
#include "cli/validators.h"

namespace perigee::cli {

namespace {

std::atomic<bool> g_interrupted = false;
std::atomic<bool> g_dimmed = false;  // the terminal, by us

// Signal handlers that end the program leave the terminal as it was.
void undim() {
  constexpr std::string_view kNormal = "\033[0m\n";
  if (g_dimmed && write(STDOUT_FILENO, kNormal.data(), kNormal.size()) < 0) return;
}

void set_signals() {
  struct sigaction action = {};
  action.sa_flags = SA_RESTART;
  action.sa_handler = [](int) {
    if (!g_interrupted.exchange(true)) return;
    undim();  // a second Ctrl-C, or one at a prompt, ends the program
    _exit(130);
  };
  sigaction(SIGINT, &action, nullptr);
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  action.sa_handler = [](int signal) {
    undim();
    raise(signal);
  };
  for (int signal : {SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
}

struct Flags {
  ModelFlags model;
  SamplingFlags sampling;
  std::string system, tools, thinking = "on";
};

// Prints deltas as they come: reasoning dimmed, then the answer.
class Printer {
 public:
  void show(const Delta& delta) {
    if (!delta.reasoning.empty()) style(true);
    fmt::print("{}", delta.reasoning);
    if (!delta.content.empty()) style(false);
    fmt::print("{}", delta.content);
    flush_stdout();
  }
  void end() {
    style(false);
    fmt::print("\n");
  }

 private:
  void style(bool dim) {
    if (dim == dim_) return;
    if (!dim) fmt::print("\n");
    if (terminal_) fmt::print("{}", dim ? "\033[2m" : "\033[0m");
    g_dimmed = terminal_ && dim;
    if (!terminal_ && dim) fmt::print("thinking: ");
    dim_ = dim;
  }
  bool terminal_ = isatty(STDOUT_FILENO) != 0;
  bool dim_ = false;
};

// Reads one line after a prompt; false at the end of the input.
bool ask(const std::string& prompt, std::string& line) {
  g_interrupted = true;  // there is no answer to stop
  fmt::print("{}", prompt);
  flush_stdout();
  if (std::getline(std::cin, line)) return true;
  if (std::ferror(stdin))
    fail(ErrorCode::kBadFile, "stdin: cannot be read: {}; give text", std::strerror(errno));
  fmt::print("\n");
  return false;
}

struct Conversation {
  const Flags& flags;
  Runner& runner;
  const ChatModel& chat;
  PrefixTree prefixes;
  boost::json::array tools;
  boost::json::array messages;

  // The model's next message, streamed; appended to the history.
  ParsedMessage answer() {
    ChatOptions options;
    options.thinking = flags.thinking == "on";
    if (!tools.empty()) options.tools = &tools;
    const Request request{
        .prompt = chat.prompt(messages, options),
        .sampling = flags.sampling.params(flags.model.model),
        .logits = flags.sampling.logits,
        .max_tokens = flags.sampling.max_tokens,
        .stop_ids = flags.sampling.ignore_eos ? std::vector<int32_t>() : chat.stop_ids(runner.config())};
    AnswerStream stream(chat.format().parser(options.thinking), flags.sampling.stop,
                        flags.sampling.logits.min_tokens);
    Printer printer;
    AnswerClock clock;
    GenerateOptions run;
    run.scheduler.max_num_batched_tokens = batched_tokens(0, runner.memory(), run.scheduler.max_num_seqs);
    run.prefixes = &prefixes;
    g_interrupted = false;
    PrefillProgress progress(request.prompt.size());
    run.on_prefill = [&](size_t, int64_t done, int64_t) {
      progress.show(done);
      return !g_interrupted.load();
    };
    run.on_token = [&](size_t, const GeneratedToken& token) {
      progress.end();
      clock.token();
      printer.show(stream.push(token.id));
      return !stream.stopped() && !g_interrupted.load();
    };
    Generation g = generate(runner, {request}, run)[0];
    printer.show(stream.flush());
    if (g.finish == FinishReason::kError) fail(ErrorCode::kInternal, "{}", g.error);
    if (stream.stopped()) g.finish = FinishReason::kStop;
    const ParsedMessage message = stream.message();
    printer.end();
    for (const auto& call : message.tool_calls) fmt::print("call {}({})\n", call.name, call.arguments);
    fmt::print(stderr, "{}[{} + {} tokens, {:.0f} tokens/s{}]{}\n", isatty(STDERR_FILENO) ? "\033[2m" : "",
               request.prompt.size(), g.tokens.size(), clock.decode_tokens_per_s(),
               g.finish == FinishReason::kStop     ? ""
               : g.finish == FinishReason::kLength ? ", cut at --max-tokens"
                                                   : ", stopped",
               isatty(STDERR_FILENO) ? "\033[0m" : "");
    boost::json::object turn{
        {"role", "assistant"}, {"content", message.content}, {"reasoning_content", message.reasoning}};
    if (!message.tool_calls.empty()) turn["tool_calls"] = tool_calls_json(message);
    messages.push_back(std::move(turn));
    return message;
  }

  // Answers until the model asks for no tool; the user gives the tools' results.
  bool turn() {
    for (;;) {
      const ParsedMessage message = answer();
      if (message.tool_calls.empty()) return true;
      for (const auto& call : message.tool_calls) {
        std::string result;
        if (!ask(fmt::format("result of {}> ", call.name), result)) return false;
        messages.push_back({{"role", "tool"}, {"tool_call_id", call.id}, {"content", result}});
      }
    }
  }
};

int run_chat(const Flags& f) {
  const ChatModel chat(f.model.model);
  Runner runner = f.model.load(1);
  chat.check_fits(runner.config());
  Conversation conversation{.flags = f,
                            .runner = runner,
                            .chat = chat,
                            .prefixes = PrefixTree(runner.pool(), {.debug = f.model.debug_cache}),
                            .tools = {},
                            .messages = {}};
  if (!f.tools.empty()) conversation.tools = read_tools(f.tools);
  if (!f.system.empty()) conversation.messages.push_back({{"role", "system"}, {"content", f.system}});
  set_signals();
  fmt::print(stderr, "{}: {} threads, numerics {}. Ctrl-C stops an answer, Ctrl-D ends.\n", f.model.model,
             runner.threads(), runner.numerics().digest);
  std::string line;
  while (ask("> ", line)) {
    if (line.empty()) continue;
    conversation.messages.push_back({{"role", "user"}, {"content", line}});
    if (!conversation.turn()) break;
  }
  return 0;
}

}  // namespace

void add_chat(CLI::App& app, Action& run) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("chat", "a conversation in the terminal");
  flags->model.add_to(*sub);
  sub->add_option("--system", flags->system, "system message");
  sub->add_option("--tools", flags->tools,
                  "file with a JSON array of OpenAI tool objects; you type their results")
      ->check(not_empty());
  sub->add_option("--thinking", flags->thinking, "on or off")->check(CLI::IsMember({"on", "off"}));
  flags->sampling.add_to(*sub);
  sub->callback([flags, &run] { run = [flags] { return run_chat(*flags); }; });
}

}  // namespace perigee::cli
