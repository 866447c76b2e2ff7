// A pool of a small hybrid shape for tests: two attention layers, one with index keys, and three KDA layers
// of two heads.
#pragma once

#include "cache/cache_pool.h"

namespace perigee::test {

inline CacheShape small_shape() {
  return {.attention_has_index = {true, false},
          .kda_layers = 3,
          .kda_heads = 2,
          .latent_format = LatentFormat::kFp8,
          .index_format = IndexKeyFormat::kMxfp4};
}

// Blocks of 128 tokens: 156,160 bytes hold one layer's state, so a sequence state takes three rows.
struct SmallPool {
  explicit SmallPool(int64_t rows, int64_t slots = 4)
      : pool(small_shape(), CachePlan(cache_kinds(small_shape()), {.block_tokens = 128}), rows, slots) {}
  CachePool pool;
};

}  // namespace perigee::test
