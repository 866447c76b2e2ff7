// CacheShape: what a sequence of one model keeps on this rank, layer kind by layer kind. The planner sees it
// as page and state kinds.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/cache_plan.h"

namespace perigee {

struct CacheShape {
  std::vector<bool> attention_has_index;  // one entry per attention layer
  int kda_layers = 0;
  int kda_heads = 0;  // of this rank
  LatentFormat latent_format = LatentFormat::kBf16;
  IndexKeyFormat index_format = IndexKeyFormat::kFp8;
  float latent_scale = 1.0f;

  int64_t bytes_per_token() const;  // of the attention layers
  int64_t state_bytes() const;      // of the KDA layers, at a chunk start
};

// The page kinds of a shape: latents of all attention layers, then index keys of those that have them.
constexpr int kLatentKind = 0, kIndexKeyKind = 1;
// Its one state kind, when it has KDA layers. A record is S, then the last three pre-conv q, k, v.
constexpr int kKdaKind = 0;
constexpr int kKdaHead = 128;
constexpr int kConvInputs = 3;  // positions before a chunk start that its convolution reads
constexpr int64_t kKdaStateBytes = int64_t{kKdaHead} * kKdaHead * 4;
constexpr int64_t kKdaRecordBytes = kKdaStateBytes + int64_t{kConvInputs} * 3 * kKdaHead * 2;
static_assert(kKdaRecordBytes == 67840);

CacheKinds cache_kinds(const CacheShape& shape);

// Where the arrays of a KDA layer's live chunk rows lie in a sequence's slot: layer · bytes + these offsets.
struct SlotLayout {
  explicit SlotLayout(int heads);
  int64_t conv_input, k, G, w, T;  // as in KdaSlot
  int64_t bytes;                   // of a layer
};

}  // namespace perigee
