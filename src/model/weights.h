// Weights: the tensors of a model, layer by layer. Views into memory that the Weights object owns; shapes at
// the end of each line.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "model/config.h"
#include "ops/weights.h"

namespace perigee {

struct LayerWeights {
  const float* input_norm = nullptr;  // [hidden]
  const float* post_norm = nullptr;   // [hidden]
  AttnResWeights attn_res, mlp_res;   // when the model has AttnRes
  std::variant<KdaWeights, MlaWeights> attention;
  std::variant<GluWeights, MoeWeights> mlp;
};

struct Weights {
  const bf16* embedding = nullptr;    // [vocab, hidden]
  const float* final_norm = nullptr;  // [hidden]
  AttnResWeights output_res;
  Linear lm_head;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  std::vector<std::shared_ptr<const void>> owners;  // mapped files and converted buffers
  std::string digest;  // of the tensor bytes (sampled) and names: part of the numerics identity
};

enum class LoadFormat { kAuto, kDummy };

struct LoadOptions {
  LoadFormat format = LoadFormat::kAuto;
  uint64_t seed = 0;  // of dummy weights
  bool show_progress = true;
};

// Loads `folder` (Hugging Face layout), or makes dummy weights for `config`. Throws Error{kBadFile} naming
// the tensor, the file, what was expected and what was found. Small tensors (norms, conv, A_log, biases) may
// be bf16 or f32 in the file and are f32 here.
Weights load_weights(const std::string& folder, const ModelConfig& config, const LoadOptions& options);

}  // namespace perigee
