// The perigee command. An error is one clear line on stderr: exit status 2 for usage, 1 for everything else.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <system_error>

#include "base/error.h"
#include "base/spelling.h"
#include "cli/commands.h"
#include "cli/config_file.h"
#include "cli/familiar_flags.h"
#include "cli/streams.h"

using perigee::cli::flush_stdout;
using perigee::cli::print_error;

namespace {

// What an unknown word may have meant, as the end of a message; "" when nothing is near.
std::string did_you_mean(const std::string& unknown, const std::vector<std::string>& known) {
  const std::string best = perigee::nearest_word(unknown, known, unknown.size() / 2);
  return best.empty() ? "" : fmt::format("; did you mean {}?", best);
}

// The first argument that no command or flag took.
std::string unknown_argument(const CLI::App& app, const std::string& argument) {
  std::vector<std::string> known;
  if (!argument.starts_with('-') && !app.get_subcommands({}).empty()) {
    for (const CLI::App* sub : app.get_subcommands({})) known.push_back(sub->get_name());
    return fmt::format("unknown command '{}'{}", argument, did_you_mean(argument, known));
  }
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  return fmt::format("unknown argument '{}'{}", argument,
                     did_you_mean(argument.substr(0, argument.find('=')), known));
}

// CLI11's wording of a missing or repeated value, put plainly.
std::string plain_message(const CLI::ParseError& error, const CLI::App& chosen) {
  const std::string message = error.what();
  const std::string flag = message.substr(0, message.find(':'));
  if (message == "A subcommand is required") {
    std::vector<std::string> names;
    for (const CLI::App* sub : chosen.get_subcommands({})) names.push_back(sub->get_name());
    return fmt::format("no command; give one of {}", fmt::join(names, ", "));
  }
  if (message.find("At Most 1 required") != std::string::npos) return flag + " is given twice; give it once";
  if (message.find("1 required") != std::string::npos) return flag + " needs a value";
  return message;
}

int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* chosen = &app;
  std::string command = "perigee";
  while (!chosen->get_subcommands().empty()) {
    chosen = chosen->get_subcommands().front();
    command += " " + chosen->get_name();
  }
  const std::vector<std::string> extra = chosen->remaining();
  print_error(fmt::format(
      "{} (see {} --help)",
      extra.empty() ? plain_message(error, *chosen) : unknown_argument(*chosen, extra.front()), command));
  return 2;
}

// Runs what the arguments ask for; the exit status.
int run(int argc, char** argv) {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
    perigee::fail(perigee::ErrorCode::kUnsupported, "this CPU lacks AVX2 or FMA; an x86-64-v3 CPU is needed");
  CLI::App app{"perigee: inference for the Kimi K3.1 Pro family, with one set of bits"};
  app.option_defaults()->always_capture_default();
  app.require_subcommand(1);
  app.set_version_flag("--version", PERIGEE_VERSION);
  app.footer("perigee COMMAND --help lists the flags of a command. Documentation: docs/");
  perigee::cli::Action action;
  perigee::cli::add_serve(app, action);
  perigee::cli::add_generate(app, action);
  perigee::cli::add_chat(app, action);
  perigee::cli::add_inspect(app, action);
  perigee::cli::add_plan(app, action);
  perigee::cli::add_eval(app, action);
  perigee::cli::add_replay(app, action);
  perigee::cli::add_bench(app, action);
  try {
    std::vector<std::string> args = perigee::cli::with_config_file(
        *app.get_subcommand("serve"), perigee::cli::spell_out({argv + 1, argv + argc}));
    std::reverse(args.begin(), args.end());  // as CLI11 takes them
    app.parse(std::move(args));
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    return usage_error(app, e);
  }
  return action();
}

}  // namespace

int main(int argc, char** argv) {
  perigee::cli::open_closed_streams();
  try {
    const int status = run(argc, argv);
    flush_stdout();
    return status;
  } catch (const perigee::Error& e) {
    print_error(e.what());
    return e.code() == perigee::ErrorCode::kUsage ? 2 : 1;
  } catch (const std::filesystem::filesystem_error& e) {
    print_error(
        fmt::format("{}: {}; check the path and its permissions", e.path1().string(), e.code().message()));
  } catch (const std::system_error& e) {
    print_error(fmt::format("stdout: {}; the output is not whole", e.what()));  // what fmt::print throws
  } catch (const std::bad_alloc&) {
    print_error("out of memory; take a smaller model, batch or prompt");
  } catch (const std::exception& e) {
    print_error(e.what());
  }
  return 1;
}
