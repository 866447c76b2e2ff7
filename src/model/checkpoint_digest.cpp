// The digest of a checkpoint: FNV-1a with 64-bit words and a final mix per tensor, folded over tensors in
// order of name.
#include <algorithm>
#include <cstring>

#include "base/thread_pool.h"
#include "model/checkpoint.h"

namespace perigee {

namespace {

class Hash {
 public:
  void bytes(const void* data, size_t size) {
    const char* p = static_cast<const char*>(data);
    for (; size >= 8; p += 8, size -= 8) word(p, 8);
    if (size > 0) word(p, size);
  }
  void number(uint64_t x) { word(&x, 8); }
  uint64_t value() const {
    uint64_t x = state_;
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
    return x ^ (x >> 32);
  }

 private:
  void word(const void* p, size_t size) {
    uint64_t x = 0;
    std::memcpy(&x, p, size);
    state_ = (state_ ^ x) * 0x100000001B3u;
    state_ ^= state_ >> 29;  // FNV alone carries nothing from high bits to low ones
  }
  uint64_t state_ = 0xCBF29CE484222325u;
};

uint64_t hash_tensor(const std::string& name, const Tensor& t) {
  constexpr size_t kWhole = 16 << 10, kPiece = 1 << 10, kPieces = 4;
  Hash h;
  h.number(name.size());
  h.bytes(name.data(), name.size());
  h.number(static_cast<uint64_t>(t.dtype));
  h.number(t.shape.size());
  for (int64_t d : t.shape) h.number(static_cast<uint64_t>(d));
  const size_t size = t.bytes();
  const char* data = static_cast<const char*>(t.data);
  if (size <= kWhole) {
    h.bytes(data, size);
  } else {
    for (size_t i = 0; i < kPieces; ++i) h.bytes(data + (size - kPiece) / (kPieces - 1) * i, kPiece);
  }
  return h.value();
}

}  // namespace

std::string checkpoint_digest(const TensorSet& set, int threads) {
  std::vector<std::pair<std::string_view, const Tensor*>> order;
  for (const auto& [name, stored] : set.tensors) {
    if (name.starts_with("vision_tower.") || name.starts_with("mm_projector.")) continue;
    order.emplace_back(name, &stored.tensor);
  }
  std::sort(order.begin(), order.end());
  std::vector<uint64_t> hashes(order.size());
  ThreadPool pool(threads);
  pool.run(static_cast<int64_t>(order.size()),
           [&](int64_t i) { hashes[i] = hash_tensor(std::string(order[i].first), *order[i].second); });
  Hash all;
  for (uint64_t h : hashes) all.number(h);
  return fmt::format("{:016x}", all.value());
}

}  // namespace perigee
