// Dummy weights: seeded random tensors with the shapes of a config and values of a trained model's scale, so
// that activations stay of order one. Every value is a pure function of (seed, tensor name, element).
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/checkpoint.h"

namespace perigee {

// Writes elements [begin, end) of the tensor (packed bytes count as elements) to `out`, which holds element
// `begin`, in the roster's dtype. `begin` is a multiple of 256.
void fill_dummy(const TensorSpec& spec, const ModelConfig& config, uint64_t seed, int64_t begin, int64_t end,
                std::byte* out);

// All tensors that the text model loads, in one region of memory.
TensorSet make_dummy_checkpoint(const ModelConfig& config, uint64_t seed, int threads, bool show_progress);

}  // namespace perigee
