// libFuzzer entry of everything that reads what clients send.
#include <cstddef>
#include <cstdint>

#include "request_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  perigee::check_request(data, size);
  return 0;
}
