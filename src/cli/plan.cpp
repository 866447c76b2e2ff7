// perigee plan: what a model's cache costs on one GPU and what fits into it, from the config alone.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/json.h"
#include "cli/validators.h"
#include "model/step.h"
#include "model/summary.h"

namespace perigee::cli {

namespace {

struct Flags {
  std::string model, override_config, kv_cache_dtype = "auto", index_cache_dtype = "auto";
  int tensor_parallel = 1, context_parallel = 1;
  int64_t block_size = 0, max_model_len = 0, max_num_seqs = 16;
  double gpu_memory = 0, utilization = 0.9;  // GB; 0: not said
  bool json = false;
};

// What the memory of one GPU is spent on.
struct Budget {
  int64_t weights = 0, cache = 0, context = 0;
  CacheCapacity capacity;
};

// The degrees that cut the heads of a model evenly.
std::string fitting_degrees(const ModelConfig& c) {
  std::string fit;
  for (int tp = 1; tp <= kMaxLanes; tp *= 2) {
    if (c.kda.num_heads % tp == 0 && c.mla.num_heads % tp == 0)
      fit += (fit.empty() ? "" : ", ") + std::to_string(tp);
  }
  return fit;
}

void check_parallel(const Flags& f, const ModelConfig& c) {
  if (c.kda.num_heads % f.tensor_parallel != 0 || c.mla.num_heads % f.tensor_parallel != 0) {
    fail(ErrorCode::kUsage,
         "--tensor-parallel-size {}: this model has {} KDA and {} MLA heads, which do not divide evenly; "
         "sizes "
         "that fit: {}",
         f.tensor_parallel, c.kda.num_heads, c.mla.num_heads, fitting_degrees(c));
  }
  if (f.tensor_parallel % f.context_parallel != 0) {
    fail(ErrorCode::kUsage,
         "--decode-context-parallel-size {}: the ranks of --tensor-parallel-size {} share the context, so it "
         "must "
         "divide that",
         f.context_parallel, f.tensor_parallel);
  }
}

Budget spend(const Flags& f, const ModelConfig& c, const CachePlan& plan) {
  Budget b{.weights = rank_weight_bytes(c, f.tensor_parallel),
           .context = f.max_model_len ? f.max_model_len : c.max_position_embeddings,
           .capacity = {}};
  const double usable = f.gpu_memory * 1e9 * f.utilization;
  b.cache = static_cast<int64_t>(usable) - b.weights;
  if (b.cache <= 0) {
    fail(ErrorCode::kUsage,
         "the weights need {:.4g} GB on each of {} GPUs, but {:g} of {:g} GB are {:.4g} GB; use a larger "
         "--tensor-parallel-size or GPUs with more memory",
         b.weights / 1e9, f.tensor_parallel, f.utilization, f.gpu_memory, usable / 1e9);
  }
  b.capacity = capacity(plan, b.cache, f.max_num_seqs, b.context);
  return b;
}

// How the numbers come about, a sentence each.
std::vector<std::string> reasons(const Flags& f, const CachePlan& plan, const Budget* budget) {
  std::vector<std::string> why;
  std::string parts;
  for (const PageKind& k : plan.kinds().pages) {
    if (k.layers)
      parts +=
          fmt::format("{}{} layers × {} B ({})", parts.empty() ? "" : " + ", k.layers, k.entry_bytes, k.name);
  }
  if (plan.context_parallel() > 1) parts = fmt::format("({}) / {} ranks", parts, plan.context_parallel());
  if (parts.empty())
    why.emplace_back("a token takes nothing: no layer has attention over tokens");
  else
    why.push_back(fmt::format("a token takes {} = {} B", parts, plan.bytes_per_token()));
  if (plan.state_rows() > 0) {
    const StateKind& k = plan.kinds().states[0];
    why.push_back(
        fmt::format("a sequence state takes {} layers × {} heads × {} B = {} B, in {} rows of which {:.1f} % "
                    "stay empty",
                    k.layers, k.heads, k.record_bytes, plan.state_bytes(), plan.state_rows(),
                    100 * plan.choice().state_waste));
    if (!parts.empty())
      why.back() += fmt::format("; it weighs as much as {:.0f} tokens",
                                static_cast<double>(plan.state_bytes()) / plan.bytes_per_token());
  }
  why.push_back(fmt::format(
      "{} {} tokens: {:.4g} MB of a sequence's {:.4g} MB of rows stay empty, the mean over lengths of 1K, "
      "8K, 32K and "
      "150K",
      f.block_size ? "the given block of" : "the least waste is at blocks of", plan.block_tokens(),
      plan.choice().expected_waste / 1e6, plan.choice().expected_allocated / 1e6));
  if (!budget) {
    why.emplace_back("what fits follows from --gpu-memory");
    return why;
  }
  const CacheCapacity& c = budget->capacity;
  why.push_back(fmt::format("{:g} GB × {:g} − {:.4g} GB of weights leave {:.4g} GB of cache", f.gpu_memory,
                            f.utilization, budget->weights / 1e9, budget->cache / 1e9));
  why.push_back(
      fmt::format("{} sequences take {:.4g} GB for chunk rows; of the {} rows in the rest their states take "
                  "{}, tokens the others",
                  c.slots, c.slots * plan.slot_bytes() / 1e9, c.rows, c.slots * plan.state_rows()));
  why.push_back(fmt::format("a full context of {} tokens takes {} rows and {} for its state", budget->context,
                            plan.blocks(budget->context), plan.state_rows()));
  return why;
}

// 16992, not 16992.0.
boost::json::value exact_number(double x) {
  if (x == std::floor(x)) return static_cast<int64_t>(x);
  return x;
}

boost::json::object plan_json(const CachePlan& plan, const Budget* b, const std::vector<std::string>& why) {
  boost::json::array blocks;
  for (const BlockChoice& c : plan.choices()) {
    const bool fits = c.state_rows > 0 || plan.kinds().states.empty();
    blocks.push_back({{"block_tokens", c.block_tokens},
                      {"row_bytes", c.row_bytes},
                      {"fits", fits},
                      {"state_rows", fits ? boost::json::value(c.state_rows) : nullptr},
                      {"row_waste", fits ? boost::json::value(c.state_waste) : nullptr},
                      {"expected_waste_bytes", fits ? boost::json::value(c.expected_waste) : nullptr}});
  }
  const auto known = [&](int64_t x) { return b ? boost::json::value(x) : boost::json::value(nullptr); };
  const CacheCapacity c = b ? b->capacity : CacheCapacity{};
  return {{"bytes_per_token", exact_number(plan.bytes_per_token())},
          {"block_tokens", plan.block_tokens()},
          {"row_bytes", plan.row_bytes()},
          {"row_waste", plan.choice().state_waste},
          {"expected_waste", plan.choice().expected_waste / plan.choice().expected_allocated},
          {"state_bytes", plan.state_bytes()},
          {"state_rows", plan.state_rows()},
          {"slot_bytes", plan.slot_bytes()},
          {"weights_bytes", known(b ? b->weights : 0)},
          {"cache_bytes", known(b ? b->cache : 0)},
          {"rows", known(c.rows)},
          {"tokens", known(c.tokens)},
          {"context", known(b ? b->context : 0)},
          {"full_contexts", known(c.full_contexts)},
          {"blocks", std::move(blocks)},
          {"why", boost::json::value_from(why)}};
}

void print_plan(const CachePlan& plan, const Budget* b, const std::vector<std::string>& why) {
  fmt::print("bytes per token   {}\n", plan.bytes_per_token());
  fmt::print("row               {} tokens, {} B\n", plan.block_tokens(), plan.row_bytes());
  fmt::print("sequence state    {} B in {} rows ({:.1f} % empty)\n", plan.state_bytes(), plan.state_rows(),
             100 * plan.choice().state_waste);
  fmt::print("chunk rows        {} B a sequence\n", plan.slot_bytes());
  if (b) {
    fmt::print("tokens            {}\n", b->capacity.tokens);
    fmt::print("full contexts     {} of {} tokens\n", b->capacity.full_contexts, b->context);
  }
  fmt::print("\n{:>8} {:>12} {:>11} {:>10} {:>15}\n", "block", "row bytes", "state rows", "row waste",
             "expected waste");
  for (const BlockChoice& c : plan.choices()) {
    const char* mark = c.block_tokens == plan.block_tokens() ? "  chosen" : "";
    if (c.state_rows == 0 && !plan.kinds().states.empty()) {
      fmt::print("{:>8} {:>12}   a layer's state does not fit\n", c.block_tokens, c.row_bytes);
    } else {
      fmt::print("{:>8} {:>12} {:>11} {:>8.1f} % {:>12.4g} MB{}\n", c.block_tokens, c.row_bytes, c.state_rows,
                 100 * c.state_waste, c.expected_waste / 1e6, mark);
    }
  }
  fmt::print("\n");
  for (const std::string& line : why) fmt::print("{}\n", line);
}

int run_plan(const Flags& f) {
  const ModelConfig config = load_config(f.model, parse_config_overrides(f.override_config));
  check_parallel(f, config);
  const NumericsFlags formats{.kv_cache_dtype = f.kv_cache_dtype, .index_cache_dtype = f.index_cache_dtype};
  const Precision precision = formats.precision();
  const CacheShape shape = cache_shape(config, precision.latent, precision.index, f.tensor_parallel);
  const CachePlan plan(cache_kinds(shape),
                       {.block_tokens = f.block_size, .context_parallel = f.context_parallel});
  std::optional<Budget> budget;
  if (f.gpu_memory > 0) budget = spend(f, config, plan);
  const Budget* b = budget ? &*budget : nullptr;
  const std::vector<std::string> why = reasons(f, plan, b);
  if (f.json) {
    fmt::print("{}\n", json_text(plan_json(plan, b, why)));
  } else {
    print_plan(plan, b, why);
  }
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Action& run) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("plan", "cache of a model on one GPU: bytes per token, rows, what fits");
  std::string names;
  for (const std::string& name : builtin_config_names()) names += (names.empty() ? "" : ", ") + name;
  const auto degree = one_of({1, 2, 4, 8, 16, 32});
  sub->add_option("MODEL", flags->model, "a model folder, a config file, or one of " + names)
      ->required()
      ->check(not_empty());
  sub->add_option("--override-config", flags->override_config, "e.g. num_hidden_layers=4")
      ->check(not_empty());
  sub->add_option("--tensor-parallel-size", flags->tensor_parallel, "GPUs that share the heads")
      ->transform(degree);
  sub->add_option("--decode-context-parallel-size", flags->context_parallel,
                  "of these, GPUs that share the tokens")
      ->transform(degree);
  sub->add_option("--kv-cache-dtype", flags->kv_cache_dtype, "latents; auto is bf16")
      ->check(CLI::IsMember({"auto", "bf16", "fp8", "nvfp4"}));
  sub->add_option("--index-cache-dtype", flags->index_cache_dtype, "index keys; auto is fp8")
      ->check(CLI::IsMember({"auto", "bf16", "fp8", "mxfp4"}));
  sub->add_option("--block-size", flags->block_size, "tokens of a row; 0 takes the least waste")
      ->transform(whole_number(0, uint64_t{1} << 30));
  sub->add_option("--gpu-memory", flags->gpu_memory, "GB (1e9 bytes) of one GPU; 0 leaves out what fits")
      ->check(number(0, 1e6));
  sub->add_option("--gpu-memory-utilization", flags->utilization, "share of it for weights and cache")
      ->check(number(0.01, 1));
  sub->add_option("--max-model-len", flags->max_model_len, "tokens of a full context; 0 takes the model's")
      ->transform(whole_number(0, uint64_t{1} << 40));
  sub->add_option("--max-num-seqs", flags->max_num_seqs, "sequences that may run at once")
      ->transform(whole_number(1, uint64_t{1} << 20));
  sub->add_flag("--json", flags->json, "one JSON object on stdout");
  sub->callback([flags, &run] { run = [flags] { return run_plan(*flags); }; });
}

}  // namespace perigee::cli
