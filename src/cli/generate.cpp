// perigee generate: one prompt, one answer, as text or JSON; or a file of requests (generate_batch.h).
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "cli/answer_clock.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/flags.h"
#include "cli/generate_batch.h"
#include "cli/json.h"
#include "cli/prefill_progress.h"
#include "cli/validators.h"
#include "text/utf8.h"

namespace perigee::cli {

namespace {

struct Flags {
  ModelFlags model;
  SamplingFlags sampling;
  BatchFlags batch;
  std::string prompt, system, tools, thinking = "on";
  int logprobs = -1;
  bool json = false;
};

// The tokenizer and chat format beside the config; dummy weights also run without them.
std::optional<ChatModel> load_chat(const ModelFlags& f) {
  const bool mute = !std::filesystem::exists(std::filesystem::path(f.model) / "tiktoken.model");
  if (f.load_format != "dummy" || !mute) return std::make_optional<ChatModel>(f.model);
  fmt::print(stderr,
             "{}: no tokenizer; every byte of the prompt is a token id, and the answer is token ids\n",
             f.model);
  return std::nullopt;
}

std::vector<int32_t> bytes_as_tokens(const std::string& text, int vocab) {
  std::vector<int32_t> ids;
  for (unsigned char byte : text) ids.push_back(byte % vocab);
  return ids;
}

std::string ids_as_text(const Generation& g) {
  std::vector<int32_t> ids;
  for (const GeneratedToken& t : g.tokens) ids.push_back(t.id);
  return fmt::format("{}", fmt::join(ids, " "));
}

// One token as text that JSON and terminals can carry.
std::string token_text(const std::optional<ChatModel>& chat, int32_t id) {
  return chat ? replace_invalid_utf8(chat->tokenizer().vocabulary().bytes(id)) : "";
}

boost::json::array logprobs_json(const Generation& g, const std::optional<ChatModel>& chat) {
  boost::json::array out;
  for (const GeneratedToken& t : g.tokens) {
    boost::json::array top;
    for (const auto& [id, logprob] : t.top) {
      top.push_back({{"token_id", id}, {"token", token_text(chat, id)}, {"logprob", json_number(logprob)}});
    }
    out.push_back({{"token_id", t.id},
                   {"token", token_text(chat, t.id)},
                   {"logprob", json_number(t.logprob)},
                   {"top", std::move(top)}});
  }
  return out;
}

void print_text(const ParsedMessage& m) {
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  if (!m.reasoning.empty())
    fmt::print("{}{}{}\n\n", terminal ? "\033[2m" : "thinking: ", m.reasoning, terminal ? "\033[0m" : "");
  if (!m.content.empty()) fmt::print("{}\n", m.content);
  for (const auto& call : m.tool_calls) fmt::print("call {}({})\n", call.name, call.arguments);
}

int run_generate(const Flags& f) {
  if (!f.batch.requests.empty()) return generate_batch(f.model, f.batch);
  if (f.prompt.empty())
    fail(ErrorCode::kUsage, "nothing to answer; give --prompt TEXT, or --batch FILE --out FILE");
  const std::optional<ChatModel> chat = load_chat(f.model);
  if (!chat && !(f.system.empty() && f.tools.empty() && f.sampling.stop.empty()))
    fail(ErrorCode::kUsage, "--system, --tools and --stop speak of text, and {} has no tokenizer",
         f.model.model);
  Runner runner = f.model.load(1);
  if (chat) chat->check_fits(runner.config());
  boost::json::array messages;
  if (!f.system.empty()) messages.push_back({{"role", "system"}, {"content", f.system}});
  messages.push_back({{"role", "user"}, {"content", f.prompt}});
  ChatOptions options;
  options.thinking = f.thinking == "on";
  boost::json::array tools;
  if (!f.tools.empty()) {
    tools = read_tools(f.tools);
    options.tools = &tools;
  }
  Request request{
      .prompt =
          chat ? chat->prompt(messages, options) : bytes_as_tokens(f.prompt, runner.config().vocab_size),
      .sampling = f.sampling.params(f.model.model),
      .logits = f.sampling.logits,
      .max_tokens = f.sampling.max_tokens,
      .stop_ids = f.sampling.ignore_eos || !chat ? std::vector<int32_t>() : chat->stop_ids(runner.config()),
      .top_logprobs = std::max(0, f.logprobs)};
  std::optional<AnswerStream> answer;
  if (chat)
    answer.emplace(chat->format().parser(options.thinking), f.sampling.stop, f.sampling.logits.min_tokens);
  PrefillProgress progress(request.prompt.size());
  PrefixTree prefixes(runner.pool(), {.debug = f.model.debug_cache});
  AnswerClock clock;
  GenerateOptions run;
  run.scheduler.max_num_batched_tokens = batched_tokens(0, runner.memory(), run.scheduler.max_num_seqs);
  run.prefixes = &prefixes;
  run.on_prefill = [&](size_t, int64_t done, int64_t) {
    progress.show(done);
    return true;
  };
  run.on_token = [&](size_t, const GeneratedToken& token) {
    progress.end();
    clock.token();
    if (answer) answer->push(token.id);
    return !answer || !answer->stopped();
  };
  Generation g = generate(runner, {request}, run)[0];
  if (answer) answer->flush();
  if (g.finish == FinishReason::kError) fail(ErrorCode::kInternal, "{}", g.error);
  if (answer && answer->stopped()) g.finish = FinishReason::kStop;
  const ParsedMessage message = answer ? answer->message() : ParsedMessage{};
  if (!f.json) {
    print_text(message);
    if (!chat) fmt::print("{}\n", ids_as_text(g));
    if (f.logprobs >= 0) {
      for (const GeneratedToken& t : g.tokens) {
        fmt::print("{:>6}  {:<16} {}\n", t.id, token_text(chat, t.id), t.logprob);
      }
    }
    if (g.finish == FinishReason::kLength)
      fmt::print(stderr, "(stopped at --max-tokens {})\n", f.sampling.max_tokens);
    return 0;
  }
  boost::json::array ids;
  for (const GeneratedToken& t : g.tokens) ids.push_back(t.id);
  const bool calls = !message.tool_calls.empty() && g.finish == FinishReason::kStop;
  boost::json::object out{
      {"text", message.content},
      {"reasoning", message.reasoning},
      {"tool_calls", tool_calls_json(message)},
      {"token_ids", std::move(ids)},
      {"logprobs",
       f.logprobs >= 0 ? boost::json::value(logprobs_json(g, chat)) : boost::json::value(nullptr)},
      {"finish_reason", calls ? "tool_calls" : to_string(g.finish)},
      {"usage",
       {{"prompt_tokens", request.prompt.size()},
        {"cached_tokens", g.cached_tokens},
        {"completion_tokens", g.tokens.size()}}},
      {"timings", {{"prefill_seconds", clock.prefill_seconds()}, {"decode_seconds", clock.decode_seconds()}}},
      {"numerics", runner.numerics().digest}};
  fmt::print("{}\n", json_text(out));
  return 0;
}

// The options that were added after the first `count`.
std::vector<CLI::Option*> options_since(CLI::App& app, size_t count) {
  std::vector<CLI::Option*> all = app.get_options();
  all.erase(all.begin(), all.begin() + static_cast<ptrdiff_t>(count));
  return all;
}

}  // namespace

void add_generate(CLI::App& app, Action& run) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("generate", "one prompt, one answer; or a file of requests");
  flags->model.add_to(*sub);
  const size_t model_options = sub->get_options().size();
  sub->add_option("--prompt", flags->prompt, "what the user says");
  sub->add_option("--system", flags->system, "system message");
  sub->add_option("--tools", flags->tools, "file with a JSON array of OpenAI tool objects")
      ->check(not_empty());
  sub->add_option("--thinking", flags->thinking, "on or off")->check(CLI::IsMember({"on", "off"}));
  sub->add_option("--logprobs", flags->logprobs,
                  "report log-probabilities, with this many alternatives per token")
      ->transform(whole_number(0, 20));
  sub->add_flag("--json", flags->json, "one JSON object on stdout");
  flags->sampling.add_to(*sub);
  const std::vector<CLI::Option*> of_prompt = options_since(*sub, model_options);
  flags->batch.add_to(*sub);
  const std::vector<CLI::Option*> of_batch = options_since(*sub, model_options + of_prompt.size());
  sub->callback([=, &run] {
    const bool batch = !flags->batch.requests.empty();
    for (const CLI::Option* option : batch ? of_prompt : of_batch)
      if (*option)
        fail(ErrorCode::kUsage, "{} goes with --{}, not with --{}{}", option->get_name(),
             batch ? "prompt" : "batch", batch ? "batch" : "prompt",
             batch ? ": there every request says it for itself" : "");
    run = [flags] { return run_generate(*flags); };
  });
}

}  // namespace perigee::cli
