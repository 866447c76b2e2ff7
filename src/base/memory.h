// Memory: where arrays live and how bytes get there; one implementation for the host, one per kind of device.
// Calls take effect in the order they are made, and in the order of the stages of the backend whose memory it
// is; only upload(), download() and wait() wait for them. Addresses of a device's memory mean nothing to the
// host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace perigee {

// `count` pieces of `bytes` bytes, the n-th at n strides after the first.
struct PieceCopy {
  void* to = nullptr;
  const void* from = nullptr;
  int64_t bytes = 0;
  int64_t count = 1;
  int64_t to_stride = 0, from_stride = 0;
};

class Memory {
 public:
  virtual ~Memory() = default;
  virtual bool on_host() const = 0;
  // At least 64-byte aligned; zero at first. Throws Error{kUnsupported} with the size when there is not
  // enough.
  virtual std::byte* allocate(int64_t bytes) = 0;
  virtual void release(std::byte* at) noexcept = 0;

  // Inside this memory; no piece overlaps another.
  virtual void copy(std::span<const PieceCopy> pieces) = 0;
  void copy(void* to, const void* from, int64_t bytes) {
    const PieceCopy all{.to = to, .from = from, .bytes = bytes};
    copy(std::span(&all, 1));
  }
  virtual void fill(void* at, uint8_t byte, int64_t bytes) = 0;
  // From and to the host. Both may be called from any thread; `host` can be used again when they return.
  virtual void upload(void* to, const void* host, int64_t bytes) = 0;
  virtual void download(void* host, const void* from, int64_t bytes) = 0;

  // Memory of the host that stages and copies of this memory reach as well: what they write there is the
  // host's to read after a wait().
  virtual Memory& staging() { return *this; }
  // Stands for everything enqueued before. wait(mark) returns when that is done; a failure of any of it is
  // reported there.
  virtual int64_t mark() { return 0; }
  virtual void wait(int64_t /*mark*/) {}
  void wait() { wait(mark()); }
};

Memory& host_memory();

// A copy of at[0, count).
template <typename T>
std::vector<T> to_host(Memory& memory, const T* at, int64_t count) {
  std::vector<T> out(static_cast<size_t>(count));
  memory.download(out.data(), at, count * static_cast<int64_t>(sizeof(T)));
  return out;
}

// Owns an array of bytes in a memory, which must outlive it.
class MemoryBlock {
 public:
  MemoryBlock() = default;
  MemoryBlock(Memory& memory, int64_t bytes) : data_(memory.allocate(bytes), {&memory}), bytes_(bytes) {}
  std::byte* data() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  struct Release {
    Memory* memory;
    void operator()(std::byte* p) const noexcept { memory->release(p); }
  };
  std::unique_ptr<std::byte[], Release> data_{nullptr, {nullptr}};
  int64_t bytes_ = 0;
};

}  // namespace perigee
