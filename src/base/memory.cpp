// The host's Memory.
#include "base/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace perigee {

namespace {

class HostMemory final : public Memory {
 public:
  bool on_host() const override { return true; }
  std::byte* allocate(int64_t bytes) override {
    const size_t rounded = static_cast<size_t>(std::max<int64_t>(1, bytes) + 63) / 64 * 64;
    void* at = std::aligned_alloc(64, rounded);
    if (!at) fail(ErrorCode::kUnsupported, "out of memory: {} bytes asked for", bytes);
    std::memset(at, 0, rounded);
    return static_cast<std::byte*>(at);
  }
  void release(std::byte* at) noexcept override { std::free(at); }
  void copy(std::span<const PieceCopy> pieces) override {
    for (const PieceCopy& p : pieces) {
      for (int64_t i = 0; i < p.count; ++i) {
        std::memcpy(static_cast<std::byte*>(p.to) + i * p.to_stride,
                    static_cast<const std::byte*>(p.from) + i * p.from_stride, static_cast<size_t>(p.bytes));
      }
    }
  }
  void fill(void* at, uint8_t byte, int64_t bytes) override {
    std::memset(at, byte, static_cast<size_t>(bytes));
  }
  void upload(void* to, const void* host, int64_t bytes) override {
    std::memcpy(to, host, static_cast<size_t>(bytes));
  }
  void download(void* host, const void* from, int64_t bytes) override {
    std::memcpy(host, from, static_cast<size_t>(bytes));
  }
};

}  // namespace

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace perigee
