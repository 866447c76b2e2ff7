// SequenceCache: everything a sequence keeps between steps. Attention layers keep 64-token pages of latents
// and index keys; KDA layers keep the state at the last stored chunk start and the rows since. Dropping
// tokens un-does them.
#pragma once

#include <cstdint>
#include <vector>

#include "base/tensor.h"
#include "ops/cache_view.h"

namespace perigee {

// What one sequence needs, layer kind by layer kind.
struct CacheShape {
  std::vector<bool> attention_has_index;  // one entry per attention layer
  int kda_layers = 0;
  int kda_heads = 0;
  LatentFormat latent_format = LatentFormat::kBf16;
  IndexKeyFormat index_format = IndexKeyFormat::kFp8;
  float latent_scale = 1.0f;

  int64_t bytes_per_token() const;  // of the attention layers
  int64_t state_bytes() const;      // of the KDA layers, at a chunk start
};

class SequenceCache {
 public:
  explicit SequenceCache(const CacheShape& shape);

  int64_t length() const { return length_; }
  // Makes room for positions [0, tokens).
  void reserve(int64_t tokens);
  // The sequence now has `length` tokens: more after a step, fewer after a rejected draft (never below the
  // last stored chunk start). Test builds poison what is dropped.
  void set_length(int64_t length);

  // All of it once more: a second sequence that begins with the same tokens.
  SequenceCache copy() const;
  // Zeroes the KDA states, which breaks the sequence: a control that shows what hangs on them.
  void zero_states();

  PageTable pages(int attention_layer) const;
  KdaSlot slot(int kda_layer);

 private:
  struct AttentionLayer {
    std::vector<Buffer> latent_pages, index_pages;
    std::vector<uint8_t*> latent, index_key;
    bool has_index = false;
  };
  struct KdaLayer {
    Buffer state, conv_input, k, G, w, T;
    int64_t base = 0;
  };
  CacheShape shape_;
  std::vector<AttentionLayer> attention_;
  std::vector<KdaLayer> kda_;
  int64_t length_ = 0, pages_ = 0;
};

}  // namespace perigee
