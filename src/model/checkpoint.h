// A checkpoint as a set of named tensors, from files in Hugging Face layout or made up by `dummy`; and its
// check against the roster.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/tensor.h"
#include "model/roster.h"

namespace perigee {

class MappedFile;

struct StoredTensor {
  Tensor tensor;  // its data may have any alignment
  int file = 0;   // index into TensorSet::files
};

struct TensorSet {
  std::string origin;  // the folder, or "dummy"
  std::vector<std::string> files;
  std::unordered_map<std::string, StoredTensor> tensors;  // by canonical name
  std::vector<std::shared_ptr<const void>> owners;        // the memory behind them
  std::vector<std::shared_ptr<const MappedFile>> mapped;  // those owners that are files
};

// Maps the files of `folder`: those that model.safetensors.index.json names, or model.safetensors. Files that
// lie outside the page cache are read ahead by `threads` threads, if they fit in memory, with a progress
// display.
TensorSet open_checkpoint(const std::string& folder, int threads, bool show_progress);

// Throws Error{kBadFile} unless `set` holds exactly the tensors of the config's roster: each missing,
// unexpected or ill-shaped one is named (the first few of each) with file, expected and found.
void check_checkpoint(const TensorSet& set, const ModelConfig& config);

// Drops axes of length one.
Shape squeeze(const Shape& shape);

// A 64-bit digest of names, dtypes, shapes and sampled bytes of every tensor that the text model loads;
// independent of how the tensors are spread over files. Tensors up to 16 KiB count whole, larger ones through
// four pieces of 1 KiB.
std::string checkpoint_digest(const TensorSet& set, int threads);

}  // namespace perigee
