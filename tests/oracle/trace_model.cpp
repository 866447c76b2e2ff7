// trace_model MODEL TOKENS.json OUT.safetensors [--threads N] [--lanes L] [--dense-segment POSITIONS]: runs
// the tokens through the engine and writes logits, selections and the residual stream after every layer, for
// the fp64 oracle to judge.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/tensor.h"
#include "engine/runner.h"

namespace perigee {
namespace {

struct Entry {
  std::string name, dtype;
  Shape shape;
  const void* data;
};

void write_safetensors(const std::string& path, const std::vector<Entry>& entries) {
  boost::json::object header;
  int64_t offset = 0;
  for (const Entry& e : entries) {
    const int64_t bytes = element_count(e.shape) * 4;  // F32 and I32 alike
    header[e.name] = {{"dtype", e.dtype},
                      {"shape", boost::json::value_from(e.shape)},
                      {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = boost::json::serialize(header);
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8);
  file << text;
  for (const Entry& e : entries) file.write(static_cast<const char*>(e.data), element_count(e.shape) * 4);
  if (!file) fail(ErrorCode::kUsage, "{}: cannot be written", path);
}

int trace(int argc, char** argv) {
  if (argc < 4)
    fail(ErrorCode::kUsage,
         "usage: trace_model MODEL TOKENS.json OUT.safetensors [--threads N] [--lanes L] "
         "[--dense-segment POSITIONS]");
  RunnerOptions options;
  for (int i = 4; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--threads") == 0) options.threads = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--lanes") == 0) options.plan.lanes = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--dense-segment") == 0) options.plan.dense_segment = std::atoi(argv[i + 1]);
  }
  std::ifstream token_file(argv[2]);
  if (!token_file) fail(ErrorCode::kUsage, "{}: cannot be read", argv[2]);
  std::stringstream text;
  text << token_file.rdbuf();
  const auto tokens = boost::json::value_to<std::vector<int32_t>>(boost::json::parse(text.str()));
  const ModelConfig config = load_config(argv[1]);
  Runner runner(config, load_weights(argv[1], config, {.show_progress = false}), options);

  SequenceCache cache(runner.cache_shape());
  StepTrace trace;
  Batch batch;
  const int64_t rows = static_cast<int64_t>(tokens.size());
  batch.add(cache, tokens, 0, static_cast<int>(rows));
  const auto logits = runner.step(batch, &trace);

  std::vector<Entry> entries{{"logits", "F32", {rows, config.vocab_size}, logits.data()}};
  const auto add = [&](const auto& layers, const char* kind, const char* dtype) {
    for (const auto& [layer, values] : layers) {
      entries.push_back({fmt::format("layers.{}.{}", layer, kind),
                         dtype,
                         {rows, static_cast<int64_t>(values.size()) / rows},
                         values.data()});
    }
  };
  add(trace.output, "output", "F32");
  add(trace.selected, "selected", "I32");
  add(trace.experts, "experts", "I32");
  write_safetensors(argv[3], entries);
  return 0;
}

}  // namespace
}  // namespace perigee

int main(int argc, char** argv) {
  try {
    return perigee::trace(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "trace_model: %s\n", e.what());
    return 1;
  }
}
