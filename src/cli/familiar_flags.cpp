#include "cli/familiar_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "cli/validators.h"

namespace perigee::cli {

namespace {

CLI::Validator anything() {
  return CLI::Validator([](std::string&) { return std::string(); }, "");
}

// Only these values are what is so anyway; any other is an error that says `instead`.
CLI::Validator only(std::vector<std::string> values, const std::string& instead) {
  return CLI::Validator(
      [values = std::move(values), instead](std::string& text) {
        return std::find(values.begin(), values.end(), text) != values.end()
                   ? std::string()
                   : fmt::format("'{}' is not supported: {}", text, instead);
      },
      "");
}

bool names_model(const std::string& arg) { return arg == "-m" || arg == "--model"; }

}  // namespace

std::vector<std::string> spell_out(std::vector<std::string> args) {
  if (args.empty() || args[0] != "serve") return args;
  static constexpr std::pair<std::string_view, std::string_view> kShort[] = {
      {"-t", "--threads"},
      {"-tp", "--tensor-parallel-size"},
      {"-pp", "--pipeline-parallel-size"},
      {"-dp", "--data-parallel-size"},
      {"-dcp", "--decode-context-parallel-size"},
      {"-np", "--parallel"},
      {"-ub", "--ubatch-size"},
      {"-cb", "--cont-batching"},
      {"-fa", "--flash-attn"},
      {"-ngl", "--n-gpu-layers"},
      {"-ctk", "--cache-type-k"},
      {"-ctv", "--cache-type-v"},
      {"-hf", "--hf-repo"}};
  std::vector<std::string> out = {args[0]}, rest;
  for (size_t i = 1; i < args.size(); ++i) {
    std::string& arg = args[i];
    const size_t equals = std::min(arg.find('='), arg.size());
    std::string name = arg.substr(0, equals);
    if (name.starts_with("--")) std::replace(name.begin(), name.end(), '_', '-');
    for (const auto& [is, stands_for] : kShort)
      if (name == is) name = stands_for;
    if (names_model(name) && equals < arg.size()) {
      out.push_back(arg.substr(equals + 1));
    } else if (names_model(name) && i + 1 < args.size()) {
      out.push_back(std::move(args[++i]));
    } else if (!name.starts_with("--") && name.starts_with('-') && equals < arg.size()) {
      rest.push_back(name);
      rest.push_back(arg.substr(equals + 1));
    } else {
      rest.push_back(name + arg.substr(equals));
      // Its value may be left out, and a model after it is none.
      const bool has_value =
          i + 1 < args.size() && (args[i + 1] == "on" || args[i + 1] == "off" || args[i + 1] == "auto");
      if (name == "--flash-attn" && equals == arg.size() && !has_value) rest.emplace_back("on");
    }
  }
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

void FamiliarFlags::accept(CLI::App& app, const std::string& names, const std::string& why,
                           const CLI::Validator& values) {
  CLI::Option* option = app.add_option(names, unused_, why)->check(values);
  option->group("Taken without effect");
  without_effect_.emplace_back(option, why);
}

void FamiliarFlags::accept_switch(CLI::App& app, const std::string& names, const std::string& why) {
  CLI::Option* option = app.add_flag(names, unused_switch_, why);
  option->group("Taken without effect");
  without_effect_.emplace_back(option, why);
}

void FamiliarFlags::refuse(CLI::App& app, const std::string& name, const std::string& instead) {
  app.add_option(name, unused_, instead)
      ->group("Not supported, and why")
      ->check(CLI::Validator([instead](std::string&) { return "is not supported: " + instead; }, ""));
}

void FamiliarFlags::refuse_switch(CLI::App& app, const std::string& name, const std::string& instead) {
  app.add_flag_callback(
         name, [=] { fail(ErrorCode::kUsage, "{} is not supported: {}", name, instead); }, instead)
      ->group("Not supported, and why");
}

void FamiliarFlags::add_to(CLI::App& app) {
  for (const char* name : {"--tensor-parallel-size", "--decode-context-parallel-size",
                           "--pipeline-parallel-size", "--data-parallel-size"})
    accept(app, name, "one rank computes", only({"1"}, "this build computes on one rank; give 1"));
  accept(app, "--dtype", "activations are bf16",
         only({"auto", "bfloat16", "bf16"}, "activations are bf16 (docs/numerics.md); leave it out"));
  accept(app, "--tool-call-parser", "the model's vocabulary decides",
         only({"auto", "kimi_k3", "kimi_k2"}, "the model's vocabulary decides; leave it out"));
  accept(app, "--reasoning-parser", "the model's vocabulary decides",
         only({"auto", "kimi_k3", "kimi_k2"}, "the model's vocabulary decides; leave it out"));
  accept(app, "--reasoning-format", "thinking is always a field of its own",
         only({"auto", "deepseek"}, "thinking is always a field of its own; leave it out"));
  accept(app, "--generation-config", "the model folder's generation_config.json is read",
         only({"auto"}, "the model folder's generation_config.json is read; edit that"));
  accept(app, "--tokenizer-mode", "the tokenizer is native code", only({"auto", "slow"}, "give auto"));
  accept(app, "--quantization,-q", "the model folder says how its weights are stored", anything());
  accept(app, "--swap-space", "sequences without room are computed again, not swapped", number(0, 1e6));
  accept(app, "--kv-offloading-backend", "tiers are the engine's own",
         only({"native"}, "tiers are the engine's own; leave it out"));
  accept(app, "--cpu-offload-gb", "the weights are in this machine's memory anyway", number(0, 1e6));
  accept(app, "--n-gpu-layers,--gpu-layers", "all layers are computed on one device", anything());
  accept(app, "--ubatch-size", "--max-num-batched-tokens says what one step computes", whole_number(1));
  accept(app, "--flash-attn", "attention is blocked in every mode",
         only({"on", "off", "auto"}, "give on or off"));
  accept(app, "--max-logprobs", "up to 20 alternatives are given", whole_number(0, 20));
  const std::pair<const char*, const char*> switches[] = {
      {"--enable-auto-tool-choice", "tool calls are always parsed"},
      {"--trust-remote-code", "no remote code is ever run"},
      {"--enable-chunked-prefill", "prompts are always computed in chunks"},
      {"--enable-expert-parallel", "one rank has all experts"},
      {"--disable-log-requests,--no-enable-log-requests", "what requests say is never logged"},
      {"--enable-log-requests", "what requests say is never logged; the access log has a line for each"},
      {"--disable-log-stats", "counters are at /metrics alone"},
      {"--disable-custom-all-reduce", "one rank has nothing to reduce"},
      {"--jinja", "chat formats are native code; no template is run"},
      {"--cont-batching", "batching is always continuous"},
      {"--metrics", "/metrics is always there"},
      {"--mlock", "weights stay where they were loaded"},
      {"--no-mmap", "weights are mapped, and read once"},
      {"--no-webui", "the page at / is small and asks nothing of others"}};
  for (const auto& [names, why] : switches) accept_switch(app, names, why);
  app.add_option("--tokenizer", tokenizer_, "the model folder's own; another is refused")
      ->group("Taken without effect");

  without_gpu_ = {
      {app.get_option("--gpu-memory-utilization"), "nothing is on a GPU; --cache-memory bounds the cache"},
      {app.get_option("--enforce-eager"), "there are no graphs to capture on the CPU"}};

  const std::pair<const char*, const char*> refused[] = {
      {"--speculative-config", "there are no draft models; leave it out"},
      {"--kv-transfer-config", "prefill and decode run in one engine; leave it out"},
      {"--lora-modules", "there are no adapters; serve merged weights"},
      {"--mla-prefill", "prefill is absorbed; leave it out"},
      {"--block-size", "the cache's planner chooses it; leave it out"},
      {"--chat-template", "chat formats are native code; see --default-chat-template-kwargs"},
      {"--hf-repo", "nothing is downloaded; give MODEL, a folder"},
      {"--cache-type-k", "use --kv-cache-dtype"},
      {"--cache-type-v", "use --kv-cache-dtype"}};
  for (const auto& [name, instead] : refused) refuse(app, name, instead);
  refuse_switch(app, "--enable-lora", "there are no adapters; serve merged weights");
  refuse_switch(app, "--embedding", "this server has no embeddings");
  refuse_switch(app, "--no-enable-chunked-prefill",
                "prompts are always computed in chunks; raise --max-num-batched-tokens");
}

void FamiliarFlags::report(const std::string& model) const {
  std::error_code error;
  if (!tokenizer_.empty() && tokenizer_ != model && !std::filesystem::equivalent(tokenizer_, model, error))
    fail(
        ErrorCode::kUsage,
        "--tokenizer {}: the tokenizer is that of the model's folder, {}; put its files there, and leave the "
        "flag out",
        tokenizer_, model);
  say(without_effect_);
}

void FamiliarFlags::report_on_cpu() const { say(without_gpu_); }

void FamiliarFlags::say(const Reasons& reasons) {
  for (const auto& [option, why] : reasons)
    if (*option) fmt::print(stderr, "{} has no effect: {}\n", option->get_name(), why);
}

}  // namespace perigee::cli
