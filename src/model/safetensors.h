// The safetensors container: an 8-byte little-endian header length, a JSON header, then the tensors' bytes.
// The reader is strict: what it accepts has every byte of the data accounted for exactly once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/tensor.h"

namespace perigee {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  uint64_t begin = 0, end = 0;  // byte range in the file
};

// Reads the header of the whole file `bytes`; `path` names it in errors. Returns the tensors in file order.
// Throws Error{kBadFile} when a length, offset, dtype, shape or name is wrong, when ranges overlap or leave
// gaps, or when bytes trail.
std::vector<TensorInfo> read_safetensors_header(std::span<const std::byte> bytes, const std::string& path);

}  // namespace perigee
