// libFuzzer entry of the safetensors reader, with mutations that know the format among libFuzzer's own.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "safetensors_check.h"
#include "safetensors_mutator.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  perigee::check_safetensors(data, size);
  return 0;
}

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  std::mt19937_64 random(seed);
  std::string bytes(reinterpret_cast<const char*>(data), size);
  switch (random() % 8) {
    case 0:
      bytes = perigee::faulty_safetensors(static_cast<perigee::Fault>(random() % perigee::kFaults), random);
      break;
    case 1:
    case 2:
      bytes = perigee::change_a_number(bytes, random);
      break;
    case 3:
    case 4: {  // libFuzzer's own on the header's text, with the length kept true
      std::string text = perigee::header_text(bytes);
      const size_t length = text.size();
      text.resize(length + 64);
      text.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text.data()), length, text.size()));
      bytes = perigee::with_header_text(bytes, text);
      break;
    }
    default:
      return LLVMFuzzerMutate(data, size, max_size);
  }
  const size_t length = std::min(bytes.size(), max_size);
  std::memcpy(data, bytes.data(), length);
  return length;
}
