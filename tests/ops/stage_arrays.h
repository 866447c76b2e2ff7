// Inputs and outputs of a stage in a backend's memory, so that one case runs on every backend.
#pragma once

#include <vector>

#include "cache/sequence_cache.h"
#include "ops/ops.h"

namespace perigee::test {

template <typename T>
class Array {
 public:
  Array(Memory& memory, const std::vector<T>& host) : Array(memory, static_cast<int64_t>(host.size())) {
    if (count_ > 0) memory.upload(block_.data(), host.data(), bytes());
  }
  // For outputs: NaN in every format.
  Array(Memory& memory, int64_t count)
      : memory_(memory), count_(count), block_(memory, count * int64_t{sizeof(T)}) {
    memory.fill(block_.data(), 0xFF, bytes());
  }
  T* data() const { return block_.template as<T>(); }
  std::vector<T> to_host() const {
    std::vector<T> host(static_cast<size_t>(count_));
    if (count_ > 0) memory_.download(host.data(), block_.data(), bytes());
    return host;
  }

 private:
  int64_t bytes() const { return count_ * int64_t{sizeof(T)}; }
  Memory& memory_;
  int64_t count_;
  MemoryBlock block_;
};

// A step of one attention layer, as stages and begin_step() are told of it.
struct AttentionStep {
  std::vector<int32_t> tokens;
  std::vector<SequenceRows> sequences;
  std::vector<std::vector<PageTable>> pages{1};
  std::vector<int64_t> page_count;

  void add(const SequenceCache& cache, int rows, int64_t start) {
    sequences.push_back({.first_row = static_cast<int>(tokens.size()),
                         .rows = rows,
                         .start = start,
                         .accepted = start + rows});
    tokens.resize(tokens.size() + rows);
    pages[0].push_back(cache.pages(0));
    page_count.push_back(cache.page_count());
  }
  void begin(Backend& backend) const {
    backend.begin_step({.tokens = tokens,
                        .logit_rows = {},
                        .sequences = sequences,
                        .slots = {},
                        .pages = pages,
                        .page_count = page_count});
  }
};

// Bytes of page i of a sequence's first attention layer, from the latents (or the index keys) on.
inline void poison_pages(Memory& memory, const SequenceCache& cache) {
  const PageTable pages = cache.pages(0);
  for (int64_t i = 0; i < cache.page_count(); ++i) {
    memory.fill(pages.latent(i), 0xFF, kPageTokens * latent_bytes(pages.latent_format));
    if (pages.has_index) memory.fill(pages.index_key(i), 0xFF, index_page_bytes(pages.index_format));
  }
}

}  // namespace perigee::test
