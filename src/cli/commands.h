// The subcommands of `perigee`. Each adds its flags to the app and sets `run` to what it does; the value is
// the exit status.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace perigee::cli {

using Action = std::function<int()>;

void add_generate(CLI::App& app, Action& run);
void add_chat(CLI::App& app, Action& run);
void add_inspect(CLI::App& app, Action& run);
void add_plan(CLI::App& app, Action& run);
void add_eval(CLI::App& app, Action& run);
void add_replay(CLI::App& app, Action& run);
void add_serve(CLI::App& app, Action& run);
void add_bench(CLI::App& app, Action& run);

}  // namespace perigee::cli
