#include "safetensors_check.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "base/error.h"
#include "model/safetensors.h"

namespace perigee {

namespace {

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "safetensors property broken: %s\n", what);
  std::abort();
}

// Stops growing once it is past any file's size, so that it cannot wrap around to a plausible number.
unsigned __int128 bytes_of(const TensorInfo& t) {
  if (std::find(t.shape.begin(), t.shape.end(), 0) != t.shape.end()) return 0;
  unsigned __int128 bytes = dtype_size(t.dtype);
  for (int64_t d : t.shape)
    if (bytes <= UINT64_MAX) bytes *= static_cast<uint64_t>(d);
  return bytes;
}

}  // namespace

bool check_safetensors(const void* data, size_t size) {
  const std::span bytes(static_cast<const std::byte*>(data), size);
  std::vector<TensorInfo> tensors;
  try {
    tensors = read_safetensors_header(bytes, "fuzz");
  } catch (const Error& e) {
    require(e.code() == ErrorCode::kBadFile, "an error has the code of a bad file");
    require(std::string_view(e.what()).starts_with("fuzz: "), "an error names the file");
    return false;
  }
  uint64_t at = tensors.empty() ? size : tensors.front().begin;
  std::set<std::string> names;
  unsigned sum = 0;
  for (const TensorInfo& t : tensors) {
    require(t.begin == at && t.begin <= t.end && t.end <= size, "ranges tile the data");
    require(names.insert(t.name).second, "names are unique");
    require(t.end - t.begin == bytes_of(t), "bytes agree with dtype and shape");
    for (uint64_t i = t.begin; i < t.end; ++i) sum += std::to_integer<unsigned>(bytes[i]);
    at = t.end;
  }
  require(at == size, "no byte trails");
  volatile unsigned used = sum;  // the reads above are real, so that AddressSanitizer sees them
  (void)used;
  return true;
}

}  // namespace perigee
