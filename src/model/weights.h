// Weights: the tensors of a model, layer by layer. Views into memory that the Weights object owns; shapes at
// the end of each line.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "model/config.h"
#include "ops/weights.h"

namespace perigee {

class MappedFile;

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
  std::vector<std::shared_ptr<const void>> owners;       // mapped files, converted buffers, tiles
  std::vector<std::shared_ptr<const MappedFile>> files;  // that matrices are views of; none of dummy weights
  std::string digest;  // of the tensor bytes (sampled) and names: part of the numerics identity
};

// Which sums a matrix's columns are cut into by the lane rule: none, always lanes, or lanes unless those of
// the experts are blocks of expert ids.
enum class ColumnLanes { kNone, kLanes, kExpertLanes };
using AnyMatrix = std::variant<Linear*, Mxfp4Linear*>;

// Calls `visit` for every matrix that a stage multiplies with, in a fixed order.
void for_each_matrix(Weights& weights, const std::function<void(AnyMatrix, ColumnLanes)>& visit);

// A pointer in Weights, and how many bytes it points at.
struct Array {
  const void** at;
  int64_t bytes;
};
// Calls `visit` for everything else that stages read: the embedding, norms, biases, convolution taps.
void for_each_array(Weights& weights, const ModelConfig& config, const std::function<void(Array)>& visit);

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
