// Writes checkpoints in Hugging Face layout for tests: the dummy weights of a config, or any tensors at all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "model/config.h"

namespace perigee {

struct FileTensor {
  std::string name;
  DType dtype = DType::kBF16;
  Shape shape;
  std::string bytes;  // little-endian, row-major
};

// One safetensors file. `header_padding` spaces follow the header, so that any alignment of the data can be
// made.
std::string safetensors_bytes(const std::vector<FileTensor>& tensors, int header_padding = 0);

// Every tensor of the config's roster, vision included, filled as dummy weights are.
std::vector<FileTensor> dummy_tensors(const ModelConfig& config, uint64_t seed);

struct CheckpointLayout {
  int64_t max_shard_bytes = 0;  // 0: one model.safetensors, no index
  int header_padding = 0;
};

// config.json and the weights, in a folder that is made if need be.
void write_checkpoint(const std::string& folder, const std::string& config_json,
                      const std::vector<FileTensor>& tensors, const CheckpointLayout& layout = {});

void write_file(const std::string& path, const std::string& bytes);
std::string read_file(const std::string& path);

}  // namespace perigee
