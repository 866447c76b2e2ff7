// The roster: every tensor that a checkpoint of a given config holds, by name, dtype and shape. Loading,
// dummy weights, `inspect` and the checkpoint writer of the tests all follow this one list.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/tensor.h"
#include "model/config.h"

namespace perigee {

enum class TensorKind {
  kEmbedding,
  kLmHead,
  kNorm,
  kAttnRes,
  kKda,
  kMla,
  kIndexer,
  kDenseMlp,
  kRouter,
  kLatentMoe,
  kSharedExperts,
  kRoutedExperts,
  kVision,
};
constexpr int kTensorKinds = static_cast<int>(TensorKind::kVision) + 1;
std::string_view kind_name(TensorKind kind);

// What the loader accepts for a tensor.
enum class TensorForm {
  kMatrix,  // bf16, this very shape
  kSmall,   // bf16 or f32, any shape that squeezes to this one
  kALog,    // as kSmall; the heads may be padded to a multiple of 128
  kPacked,  // u8, two e2m1 a byte, this very shape
  kScale,   // u8, e8m0, this very shape
  kVision,  // counted and skipped: bf16 or f32, this very shape
};

struct TensorSpec {
  std::string name;
  TensorKind kind = TensorKind::kNorm;
  TensorForm form = TensorForm::kMatrix;
  DType dtype = DType::kBF16;  // as released
  Shape shape;                 // as released
  int64_t parameters = 0;      // logical: two a packed byte, none for scales and padding
  bool optional = false;       // lm_head of a model that ties it to the embedding
};

// Calls `visit` for every tensor in checkpoint order.
void for_each_tensor(const ModelConfig& config, const std::function<void(const TensorSpec&)>& visit);
std::vector<TensorSpec> tensor_roster(const ModelConfig& config);

// Names that some checkpoints use for a tensor of the roster; a name that needs no change comes back as it
// is.
std::string canonical_tensor_name(const std::string& name);

}  // namespace perigee
