#include "cli/flags.h"

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace perigee::cli {

namespace {

const char* const kModelGroup = "Model";
const char* const kNumericsGroup = "Numerics (part of the identity)";
const char* const kSamplingGroup = "Sampling";

template <typename Format>
Format format_or(const std::string& flag, const std::string& name, Format fallback,
                 std::optional<Format> parsed, const char* known) {
  if (name == "auto") return fallback;
  if (!parsed) fail(ErrorCode::kUsage, "{} {}: unknown format; use one of auto, {}", flag, name, known);
  return *parsed;
}

}  // namespace

void ModelFlags::add_to(CLI::App& app) {
  app.add_option("MODEL", model,
                 "a folder in Hugging Face layout, or a built-in config name with --load-format dummy")
      ->required();
  app.add_option("--load-format", load_format,
                 "auto (the folder's safetensors) or dummy (seeded random weights)")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->group(kModelGroup);
  app.add_option("--override-config", override_config, "e.g. num_hidden_layers=4,num_experts=16")
      ->group(kModelGroup);
  app.add_option("--dummy-seed", dummy_seed, "seed of the dummy weights")->group(kModelGroup);
  app.add_option("--device", device, "cpu (cuda has no stages yet)")
      ->check(CLI::IsMember({"cpu"}))
      ->group(kModelGroup);
  app.add_option("--threads", threads, "CPU threads; 0 takes all")
      ->check(CLI::Range(0, 1024))
      ->group(kModelGroup);
  app.add_option("--kv-cache-dtype", kv_cache_dtype, "latents: auto (bf16), bf16, fp8, nvfp4")
      ->group(kNumericsGroup);
  app.add_option("--index-cache-dtype", index_cache_dtype, "index keys: auto (fp8), bf16, fp8, mxfp4")
      ->group(kNumericsGroup);
  app.add_option("--lanes", lanes, "lanes of the sums that tensor parallelism cuts")->group(kNumericsGroup);
  app.add_option("--attention-lanes", attention_lanes, "lanes of attention over keys")->group(kNumericsGroup);
  app.add_option("--moe-lanes", moe_lanes, "tensor or expert")
      ->check(CLI::IsMember({"tensor", "expert"}))
      ->group(kNumericsGroup);
}

Runner ModelFlags::load(bool show_progress) const {
  ModelConfig config = load_config(model, parse_config_overrides(override_config));
  const LoadFormat format = load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kAuto;
  if (format == LoadFormat::kAuto && !std::filesystem::is_directory(model)) {
    fail(ErrorCode::kUsage,
         "{}: not a model folder; give a folder with config.json and safetensors, or --load-format dummy",
         model);
  }
  RunnerOptions options;
  options.precision.latent = format_or("--kv-cache-dtype", kv_cache_dtype, LatentFormat::kBf16,
                                       parse_latent_format(kv_cache_dtype), "bf16, fp8, nvfp4");
  options.precision.index = format_or("--index-cache-dtype", index_cache_dtype, IndexKeyFormat::kFp8,
                                      parse_index_key_format(index_cache_dtype), "bf16, fp8, mxfp4");
  options.plan = {
      .lanes = lanes, .attention_lanes = attention_lanes, .moe_lanes_expert = moe_lanes == "expert"};
  options.threads = threads;
  Weights weights =
      load_weights(model, config, {.format = format, .seed = dummy_seed, .show_progress = show_progress});
  return Runner(std::move(config), std::move(weights), options);
}

void SamplingFlags::add_to(CLI::App& app) {
  app.add_option("--temperature", temperature, "0 takes the most likely token; default: the model's")
      ->check(CLI::Range(0.0, 100.0))
      ->group(kSamplingGroup);
  app.add_option("--top-p", top_p, "keep the likeliest tokens up to this probability")
      ->check(CLI::Range(0.0, 1.0))
      ->group(kSamplingGroup);
  app.add_option("--top-k", top_k, "keep this many tokens; 0 keeps all")
      ->check(CLI::Range(0, 1 << 30))
      ->group(kSamplingGroup);
  app.add_option("--seed", seed, "the same seed gives the same answer")->group(kSamplingGroup);
  app.add_option("--max-tokens", max_tokens, "longest answer, thinking included")
      ->check(CLI::Range(1, 1 << 30))
      ->group(kSamplingGroup);
}

SampleParams SamplingFlags::params(const std::string& model) const {
  SampleParams p{.temperature = 1.0f, .top_p = 1.0f, .top_k = 0, .seed = seed};
  std::ifstream file(std::filesystem::path(model) / "generation_config.json");
  if (file) {
    std::stringstream text;
    text << file.rdbuf();
    boost::system::error_code error;
    const boost::json::value json = boost::json::parse(text.str(), error);
    if (error || !json.is_object()) {
      fail(ErrorCode::kBadFile, "{}/generation_config.json: not a JSON object; correct or remove it", model);
    }
    const auto number = [&](const char* key, double fallback) {
      const auto* v = json.as_object().if_contains(key);
      return v && v->is_number() ? v->to_number<double>() : fallback;
    };
    p.temperature = static_cast<float>(number("temperature", 1.0));
    p.top_p = static_cast<float>(number("top_p", 1.0));
    p.top_k = static_cast<int>(number("top_k", 0));
  }
  if (temperature >= 0) p.temperature = temperature;
  if (top_p >= 0) p.top_p = top_p;
  if (top_k >= 0) p.top_k = top_k;
  return p;
}

}  // namespace perigee::cli
