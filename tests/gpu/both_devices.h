// One set of inputs for the CPU's plain backend and for a GPU's: page-locked host memory has the same address
// on both, so a stage is called twice with the same arguments.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "cache/sequence_cache.h"
#include "ops/cpu/backend.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/cuda_check.h"
#include "ops/reference.h"

namespace perigee::test {

template <typename T>
struct PageLocked {
  using value_type = T;
  PageLocked() = default;
  template <typename U>
  PageLocked(const PageLocked<U>&) {}
  T* allocate(size_t n) {
    void* at = nullptr;
    cuda::cuda_check(cudaMallocHost(&at, n * sizeof(T)), "cudaMallocHost");
    return static_cast<T*>(at);
  }
  void deallocate(T* at, size_t) { cudaFreeHost(at); }
  template <typename U>
  bool operator==(const PageLocked<U>&) const {
    return true;
  }
};

template <typename T>
using Shared = std::vector<T, PageLocked<T>>;

template <typename T>
Shared<T> shared(const std::vector<T>& x) {
  return Shared<T>(x.begin(), x.end());
}

// Outputs start as NaN in every format.
template <typename T>
Shared<T> poisoned(int64_t count) {
  Shared<T> x(static_cast<size_t>(count));
  std::memset(x.data(), 0xFF, x.size() * sizeof(T));
  return x;
}

// A pool's memory that both devices read and write.
class PageLockedMemory final : public cuda::PageLockedMemory {
 public:
  bool on_host() const override { return false; }  // taken as a whole, not as address space
};

inline Memory& page_locked_memory() {
  static PageLockedMemory memory;
  return memory;
}

// One backend for a test binary: a context and its buffers cost more than most tests.
inline cuda::CudaBackend& gpu() {
  static cuda::CudaBackend backend;
  return backend;
}

// What the host knows of a step with one KDA layer (slots may be empty), told to the GPU. The stages are to
// be called with these very spans.
class GpuStep {
 public:
  explicit GpuStep(std::vector<SequenceRows> sequences, std::vector<KdaSlot> slots = {})
      : sequences_(std::move(sequences)), slots_{std::move(slots)} {
    int rows = 0;
    for (const SequenceRows& s : sequences_) rows += s.rows;
    tokens_.resize(rows);
  }
  void begin() const {
    gpu().begin_step({.tokens = tokens_,
                      .logit_rows = {},
                      .sequences = sequences_,
                      .slots = slots_,
                      .pages = {},
                      .page_count = {}});
  }
  int rows() const { return static_cast<int>(tokens_.size()); }
  std::span<const SequenceRows> sequences() const { return sequences_; }
  std::span<const KdaSlot> slots() const { return slots_[0]; }

 private:
  std::vector<int32_t> tokens_;
  std::vector<SequenceRows> sequences_;
  std::vector<std::vector<KdaSlot>> slots_;
};

inline double relative_l2(const Shared<bf16>& got, const Shared<bf16>& want) {
  return relative_l2(std::vector<bf16>(got.begin(), got.end()),
                     widen(std::vector<bf16>(want.begin(), want.end())));
}
inline double relative_l2(const Shared<float>& got, const Shared<float>& want) {
  return relative_l2(std::vector<float>(got.begin(), got.end()), Doubles(want.begin(), want.end()));
}

}  // namespace perigee::test
