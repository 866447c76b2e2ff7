// perigee generate --batch: a file of API requests to a file of answers.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/flags.h"
#include "cli/served_model.h"

namespace perigee::cli {

struct BatchFlags {
  std::string requests, answers;
  ServedModelFlags served;
  int max_num_seqs = 16, max_num_batched_tokens = 0;  // of tokens 0: as suits the device

  void add_to(CLI::App& app);
};

int generate_batch(const ModelFlags& model, const BatchFlags& flags);

}  // namespace perigee::cli
