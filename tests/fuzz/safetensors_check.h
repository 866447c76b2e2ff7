// The property that holds for any bytes whatever: the reader refuses them with Error{kBadFile}, or returns
// tensors whose ranges tile the data exactly and agree with dtype and shape.
#pragma once

#include <cstddef>

namespace perigee {

// True when the bytes were accepted. Aborts when the property is broken.
bool check_safetensors(const void* data, size_t size);

}  // namespace perigee
