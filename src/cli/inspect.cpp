// perigee inspect: what a model consists of, without running it.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <filesystem>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/json.h"
#include "cli/validators.h"
#include "engine/numerics.h"
#include "model/summary.h"
#include "ops/cpu/fast/backend.h"

namespace perigee::cli {

namespace {

struct Flags {
  std::string model, override_config, load_format = "auto";
  uint64_t dummy_seed = 0;
  NumericsFlags numerics;
  bool json = false, tensors = false;
};

std::string layer_kinds(const ModelConfig& c) {
  std::string kinds;
  for (int i = 0; i < c.num_layers; ++i) kinds += c.is_kda[i] ? 'K' : (c.is_dsa(i) ? 'S' : 'M');
  return kinds;
}

// The digest of a folder's weights or of dummy ones, or "config" when only a config is at hand.
std::string weights_digest(const Flags& f, const ModelConfig& config) {
  const bool dummy = f.load_format == "dummy";
  if (!dummy && !std::filesystem::is_directory(f.model)) return "config";
  return load_weights(f.model, config,
                      {.format = dummy ? LoadFormat::kDummy : LoadFormat::kAuto, .seed = f.dummy_seed})
      .digest;
}

void print_summary(const ModelConfig& c, const ModelSummary& s, const NumericsIdentity& id) {
  fmt::print("architecture  {}\n", s.architecture);
  fmt::print("parameters    {} ({:.4g} B), {} active per token ({:.4g} B)\n", s.parameters,
             s.parameters / 1e9, s.active_parameters, s.active_parameters / 1e9);
  fmt::print("tensors       {}, {:.4g} GB\n", s.tensors, s.bytes / 1e9);
  fmt::print("layers        {}: {}  (K KDA, M MLA, S MLA with DSA)\n", c.num_layers, layer_kinds(c));
  fmt::print("hidden        {}; KDA {} heads; MLA {} heads, latent {}\n", c.hidden_size, c.kda.num_heads,
             c.mla.num_heads, c.mla.latent_dim());
  if (c.dsa)
    fmt::print("DSA           {} heads of {}, top {}\n", c.dsa->num_heads, c.dsa->head_dim, c.dsa->top_k);
  if (c.moe.num_experts) {
    fmt::print("experts       {} of {}, intermediate {}, {} shared, {}\n", c.moe.experts_per_token,
               c.moe.num_experts, c.moe.intermediate_size, c.moe.num_shared_experts,
               c.mxfp4_experts ? "MXFP4" : "bf16");
  }
  for (const std::string& note : c.notes) fmt::print("read          {}\n", note);
  fmt::print("numerics      {}", id.digest);
  for (const auto& [key, value] : id.fields) fmt::print("  {}={}", key, value);
  fmt::print("\n\n{:<16} {:>10} {:>20} {:>20}\n", "kind", "tensors", "parameters", "bytes");
  for (int k = 0; k < kTensorKinds; ++k) {
    if (s.tensors_by_kind[k] == 0) continue;
    fmt::print("{:<16} {:>10} {:>20} {:>20}\n", kind_name(static_cast<TensorKind>(k)), s.tensors_by_kind[k],
               s.parameters_by_kind[k], s.bytes_by_kind[k]);
  }
}

boost::json::object summary_json(const ModelConfig& c, const ModelSummary& s, const NumericsIdentity& id) {
  boost::json::object bytes{{"total", s.bytes}};
  for (int k = 0; k < kTensorKinds; ++k) {
    if (s.bytes_by_kind[k]) bytes[kind_name(static_cast<TensorKind>(k))] = s.bytes_by_kind[k];
  }
  boost::json::object fields;
  for (const auto& [key, value] : id.fields) fields[key] = value;
  const cpu::Kernels* kernels = cpu::best_kernels();
  return {{"architecture", s.architecture},
          {"parameters", s.parameters},
          {"active_parameters", s.active_parameters},
          {"tensors", s.tensors},
          {"bytes", std::move(bytes)},
          {"layers", layer_kinds(c)},
          {"numerics", {{"digest", id.digest}, {"fields", std::move(fields)}}},
          {"cpu",
           {{"kernels", kernels ? kernels->name : "plain"},
            {"fast_stages", boost::json::value_from(cpu::fast_stages())}}}};
}

int run_inspect(const Flags& f) {
  const ModelConfig config = load_config(f.model, parse_config_overrides(f.override_config));
  const ModelSummary summary = summarize(config);
  const NumericsIdentity id = numerics_identity(config, weights_digest(f, config), f.numerics.precision(),
                                                f.numerics.plan(), "x86-bf16-v1");
  boost::json::array roster;
  if (f.tensors) {
    for_each_tensor(config, [&](const TensorSpec& t) {
      if (f.json) {
        roster.push_back(
            {{"name", t.name}, {"dtype", dtype_name(t.dtype)}, {"shape", boost::json::value_from(t.shape)}});
      } else {
        fmt::print("{:<90} {:<5} {}\n", t.name, dtype_name(t.dtype), to_string(t.shape));
      }
    });
  }
  if (f.json) {
    boost::json::object out = summary_json(config, summary, id);
    if (f.tensors) out["roster"] = std::move(roster);
    fmt::print("{}\n", json_text(out));
  } else if (!f.tensors) {
    print_summary(config, summary, id);
  }
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Action& run) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub =
      app.add_subcommand("inspect", "architecture, parameters, bytes, tensors, numerics identity");
  std::string names;
  for (const std::string& name : builtin_config_names()) names += (names.empty() ? "" : ", ") + name;
  sub->add_option("MODEL", flags->model, "a model folder, a config file, or one of " + names)
      ->required()
      ->check(not_empty());
  sub->add_option("--override-config", flags->override_config, "e.g. num_hidden_layers=4")
      ->check(not_empty());
  sub->add_option("--load-format", flags->load_format,
                  "the folder's safetensors, or the seeded random weights that bench and generate would make")
      ->check(CLI::IsMember({"auto", "dummy"}));
  sub->add_option("--dummy-seed", flags->dummy_seed, "seed of the dummy weights")->transform(whole_number(0));
  flags->numerics.add_to(*sub);
  sub->add_flag("--tensors", flags->tensors, "list every tensor of the checkpoint");
  sub->add_flag("--json", flags->json, "one JSON object on stdout");
  sub->callback([flags, &run] { run = [flags] { return run_inspect(*flags); }; });
}

}  // namespace perigee::cli
