// Flags of the tiers behind the cache: host memory and a file that take what the pool has no room for.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cache/row_store.h"

namespace perigee::cli {

struct TierFlags {
  double memory = 0, file_size = 0;  // GiB, as vLLM counts them
  std::string file;

  void add_to(CLI::App& app);
  // Throws Error{kUsage} for a file without a size, or a size without a file.
  RowStoreOptions options() const;
};

}  // namespace perigee::cli
