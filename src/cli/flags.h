// Flags that several subcommands share, and how they become a loaded model.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "engine/runner.h"

namespace perigee::cli {

// The choices that are part of the numerics identity.
struct NumericsFlags {
  std::string kv_cache_dtype = "auto", index_cache_dtype = "auto", moe_lanes = "tensor";
  int lanes = 1, attention_lanes = 1;

  void add_to(CLI::App& app);
  Precision precision() const;
  ReductionPlan plan() const;
};

struct ModelFlags {
  std::string model, load_format = "auto", override_config, device = "auto", cpu_kernels = "auto";
  NumericsFlags numerics;
  int threads = 0;
  bool no_pack_cache = false, enforce_eager = false;
  uint64_t dummy_seed = 0;
  double cache_memory = 0;  // GB; 0: half of the machine's memory
  int64_t cache_rows = 0;   // 0: as cache_memory says
  double gpu_memory_utilization = 0.9;
  bool debug_cache = false;

  void add_to(CLI::App& app);
  // With a cache for so many sequences at once; `step_tokens`: of the largest step, if not the default.
  Runner load(int64_t sequences = RunnerOptions().sequences, int step_tokens = 0) const;
};

struct SamplingFlags {
  float temperature = -1, top_p = -1;  // negative: what generation_config.json says
  int top_k = -1, max_tokens = 1024;
  uint64_t seed = 0;
  LogitsParams logits;
  std::vector<std::string> stop;
  bool ignore_eos = false;

  void add_to(CLI::App& app);
  // Checked, with the model folder's generation_config.json filling what was not given.
  SampleParams params(const std::string& model) const;
};

}  // namespace perigee::cli
