// libFuzzer entry of the safetensors reader.
#include <cstddef>
#include <cstdint>

#include "safetensors_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  perigee::check_safetensors(data, size);
  return 0;
}
