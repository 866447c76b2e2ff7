#include "cli/flags.h"

#include <algorithm>
#include <filesystem>

#include "base/read_file.h"
#include "cli/validators.h"
#include "model/config_fields.h"
#include "model/config_json.h"

namespace perigee::cli {

namespace {
constexpr double kHottest = 100;
constexpr int64_t kMostTokens = int64_t{1} << 30;
}  // namespace

void NumericsFlags::add_to(CLI::App& app) {
  const auto group = [](CLI::Option* option) { option->group("Numerics (part of the identity)"); };
  group(app.add_option("--kv-cache-dtype", kv_cache_dtype, "latents; auto is bf16")
            ->check(CLI::IsMember({"auto", "bf16", "fp8", "nvfp4"})));
  group(app.add_option("--index-cache-dtype", index_cache_dtype, "index keys; auto is fp8")
            ->check(CLI::IsMember({"auto", "bf16", "fp8", "mxfp4"})));
  group(app.add_option("--lanes", lanes, "lanes of the sums that tensor parallelism cuts")
            ->transform(one_of({1, 2, 4, 8, 16, 32})));
  group(app.add_option("--attention-lanes", attention_lanes, "lanes of attention over keys")
            ->transform(one_of({1, 2, 4, 8, 16, 32})));
  group(app.add_option("--moe-lanes", moe_lanes, "lanes of the experts: blocks of columns or of experts")
            ->check(CLI::IsMember({"tensor", "expert"})));
}

Precision NumericsFlags::precision() const {
  return {.latent = parse_latent_format(kv_cache_dtype).value_or(LatentFormat::kBf16),
          .index = parse_index_key_format(index_cache_dtype).value_or(IndexKeyFormat::kFp8)};
}

ReductionPlan NumericsFlags::plan() const {
  return {.lanes = lanes, .attention_lanes = attention_lanes, .moe_lanes_expert = moe_lanes == "expert"};
}

void ModelFlags::add_to(CLI::App& app) {
  const auto group = [](CLI::Option* option) { option->group("Model"); };
  app.add_option("MODEL", model, "a folder in Hugging Face layout")->required()->check(not_empty());
  group(app.add_option("--load-format", load_format, "the folder's safetensors, or seeded random weights")
            ->check(CLI::IsMember({"auto", "dummy"})));
  group(app.add_option("--override-config", override_config, "e.g. num_hidden_layers=4,num_experts=16")
            ->check(not_empty()));
  group(app.add_option("--dummy-seed", dummy_seed, "seed of the dummy weights")->transform(whole_number(0)));
  group(app.add_option("--device", device, "where to compute; auto takes a GPU where there is one")
            ->check(CLI::IsMember({"auto", "cpu", "cuda"})));
  group(app.add_option("--gpu-memory-utilization", gpu_memory_utilization,
                       "share of the GPU's memory for weights, cache and workspace")
            ->check(number(0.01, 1)));
  group(app.add_flag("--enforce-eager", enforce_eager, "no CUDA graphs on a GPU: the same bits, slower"));
  group(app.add_option("--threads", threads, "CPU threads; 0 takes all")->transform(whole_number(0, 1024)));
  group(app.add_option("--cpu-kernels", cpu_kernels, "auto takes the fastest; all give the same bits")
            ->check(CLI::IsMember({"auto", "plain", "avx2", "avx512"})));
  group(app.add_option("--cache-memory", cache_memory,
                       "GB (1e9 bytes) of cache; 0 takes up to half of the machine's memory")
            ->check(number(0, 1e6)));
  group(app.add_flag("--debug-cache", debug_cache, "check the cache after every step"));
  group(
      app.add_flag("--no-pack-cache", no_pack_cache, "keep no file of CPU-ordered weights beside the model"));
  numerics.add_to(app);
}

Runner ModelFlags::load(int64_t sequences, int step_tokens) const {
  ModelConfig config = load_config(model, parse_config_overrides(override_config));
  const LoadFormat format = load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kAuto;
  if (format == LoadFormat::kAuto && !std::filesystem::is_directory(model)) {
    fail(ErrorCode::kUsage,
         "{}: not a model folder; give a folder with config.json and safetensors, or --load-format dummy",
         model);
  }
  Weights weights = load_weights(model, config, {.format = format, .seed = dummy_seed});
  return Runner(std::move(config), std::move(weights),
                {.precision = numerics.precision(),
                 .plan = numerics.plan(),
                 .threads = threads,
                 .tile_folder = format == LoadFormat::kAuto && !no_pack_cache ? model : "",
                 .device = device,
                 .cpu_kernels = cpu_kernels,
                 .cache_bytes = static_cast<int64_t>(cache_memory * 1e9),
                 .cache_rows = cache_rows,
                 .cuda_graphs = !enforce_eager,
                 .gpu_memory_utilization = gpu_memory_utilization,
                 .step_tokens = step_tokens,
                 .sequences = sequences});
}

void SamplingFlags::add_to(CLI::App& app) {
  const auto group = [](CLI::Option* option) { option->group("Sampling"); };
  group(app.add_option("--temperature", temperature, "0 takes the most likely token")
            ->check(number(0, kHottest))
            ->default_str("the model's"));
  group(app.add_option("--top-p", top_p, "keep the likeliest tokens up to this probability")
            ->check(number(0, 1))
            ->default_str("the model's"));
  group(app.add_option("--top-k", top_k, "keep this many tokens; 0 keeps all")
            ->transform(whole_number(0, kMostTokens))
            ->default_str("the model's"));
  group(app.add_option("--seed", seed, "the same seed gives the same answer")->transform(whole_number(0)));
  group(app.add_option("--min-p", logits.min_p, "keep tokens at least this likely beside the likeliest")
            ->check(number(0, 1)));
  group(app.add_option("--repetition-penalty", logits.repetition_penalty,
                       "above 1: tokens of prompt and answer get less likely")
            ->check(number(0.01, 100)));
  group(app.add_option("--frequency-penalty", logits.frequency_penalty,
                       "subtracted for every time a token stands in the answer")
            ->check(number(-2, 2)));
  group(app.add_option("--presence-penalty", logits.presence_penalty,
                       "subtracted once for every token of the answer")
            ->check(number(-2, 2)));
  group(app.add_option("--min-tokens", logits.min_tokens, "no end before this many tokens")
            ->transform(whole_number(0, kMostTokens)));
  group(app.add_option("--stop", stop, "end the answer's text before this string; may be given again")
            ->allow_extra_args(false)
            ->check(not_empty()));
  group(app.add_flag("--ignore-eos", ignore_eos, "go on to --max-tokens, whatever the model says"));
  group(app.add_option("--max-tokens", max_tokens, "longest answer, thinking included")
            ->transform(whole_number(1, kMostTokens)));
}

SampleParams SamplingFlags::params(const std::string& model) const {
  SampleParams p{.temperature = 1.0f, .top_p = 1.0f, .top_k = 0, .seed = seed};
  const std::filesystem::path path = std::filesystem::path(model) / "generation_config.json";
  if (std::filesystem::exists(path)) {
    const boost::json::value json =
        parse_strict_json(read_file(path.string()), path.string(), ErrorCode::kBadConfig);
    if (!json.is_object())
      fail(ErrorCode::kBadConfig, "{}: not a JSON object; correct or remove it", path.string());
    const Fields fields(json.get_object(), path.string(), "");
    p.temperature = static_cast<float>(fields.number({"temperature"}, 1.0, 0, kHottest));
    p.top_p = static_cast<float>(fields.number({"top_p"}, 1.0, 0, 1));
    p.top_k = static_cast<int>(fields.integer({"top_k"}, 0, {0, kMostTokens}));
  }
  if (temperature >= 0) p.temperature = temperature;
  if (top_p >= 0) p.top_p = top_p;
  if (top_k >= 0) p.top_k = top_k;
  return p;
}

}  // namespace perigee::cli
