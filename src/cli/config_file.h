// serve --config FILE: flags from a file, as vLLM's. YAML (or JSON, which is YAML): a flag's name without its
// dashes, and its value; `model` is MODEL. The command line goes before the file.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace perigee::cli {

// The arguments of `perigee serve …` with what the file says in the place of --config. `serve` has all flags
// by now. Throws Error{kUsage} naming the file and the key for what is no flag, or no value of one.
std::vector<std::string> with_config_file(const CLI::App& serve, std::vector<std::string> args);

}  // namespace perigee::cli
