// Tensor: a non-owning view of row-major, contiguous memory. Buffer: the owner of 64-byte aligned memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"

namespace perigee {

using Shape = std::vector<int64_t>;

inline int64_t element_count(const Shape& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

inline std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ",")); }

struct Tensor {
  DType dtype = DType::kF32;
  Shape shape;
  const void* data = nullptr;

  int64_t elements() const { return element_count(shape); }
  size_t bytes() const { return static_cast<size_t>(elements()) * dtype_size(dtype); }
  template <typename T>
  const T* as() const {
    check(sizeof(T) == dtype_size(dtype), "Tensor::as: element size differs from the dtype");
    return static_cast<const T*>(data);
  }
};

// Owns `bytes` bytes at a 64-byte aligned address; contents are zero at first.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    const size_t rounded = (bytes + 63) / 64 * 64;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, rounded ? rounded : 64)));
    if (!data_) fail(ErrorCode::kUnsupported, "out of memory: {} bytes asked for", bytes);
    std::memset(data_.get(), 0, rounded);
  }
  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  size_t size() const { return bytes_; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_.get());
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte[], Free> data_;
  size_t bytes_ = 0;
};

}  // namespace perigee
