// Flags that several subcommands share, and how they become a loaded model.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "engine/runner.h"

namespace perigee::cli {

struct ModelFlags {
  std::string model;
  std::string load_format = "auto", override_config, device = "cpu";
  std::string kv_cache_dtype = "auto", index_cache_dtype = "auto", moe_lanes = "tensor",
              mla_prefill = "absorbed";
  int threads = 0, lanes = 1, attention_lanes = 1;
  uint64_t dummy_seed = 0;

  void add_to(CLI::App& app);
  Runner load(bool show_progress) const;
};

struct SamplingFlags {
  float temperature = -1, top_p = -1;  // negative: what generation_config.json says
  int top_k = -1, max_tokens = 1024;
  uint64_t seed = 0;

  void add_to(CLI::App& app);
  // Checked, with the model folder's generation_config.json filling what was not given.
  SampleParams params(const std::string& model) const;
};

}  // namespace perigee::cli
