// Flags of `serve` that users of vLLM's `vllm serve` and of llama.cpp's `llama-server` type by habit. Those
// that mean one of ours are further names of it; the ones here have nothing to change, and say why, or are
// refused with what to use instead.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

namespace perigee::cli {

// The arguments of `perigee serve` as CLI11 can take them: names of one dash and several letters spelled out
// (-tp), underscores in names as dashes (--max_model_len), and the model given by flag (-m, --model) in its
// place.
std::vector<std::string> spell_out(std::vector<std::string> args);

class FamiliarFlags {
 public:
  void add_to(CLI::App& app);
  // A line on stderr for each that was given and changes nothing. Throws Error{kUsage} where `model`, the
  // folder, does not fit.
  void report(const std::string& model) const;
  // The same for flags of GPUs, once the model is on the CPU.
  void report_on_cpu() const;

 private:
  void refuse(CLI::App& app, const std::string& name, const std::string& instead);
  void refuse_switch(CLI::App& app, const std::string& name, const std::string& instead);
  void accept(CLI::App& app, const std::string& names, const std::string& why, const CLI::Validator& values);
  void accept_switch(CLI::App& app, const std::string& names, const std::string& why);

  using Reasons = std::vector<std::pair<const CLI::Option*, std::string>>;
  static void say(const Reasons& reasons);

  Reasons without_effect_, without_gpu_;
  std::string tokenizer_, unused_;
  bool unused_switch_ = false;
};

}  // namespace perigee::cli
