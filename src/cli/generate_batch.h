// perigee generate --batch: a file of API requests to a file of answers.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/engine_flags.h"
#include "cli/flags.h"
#include "cli/served_model.h"

namespace perigee::cli {

struct BatchFlags {
  std::string requests, answers;
  ServedModelFlags served;
  EngineFlags engine;

  void add_to(CLI::App& app);
};

int generate_batch(const ModelFlags& model, BatchFlags flags);

}  // namespace perigee::cli
