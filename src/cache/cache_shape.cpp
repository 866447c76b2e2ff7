#include "cache/cache_shape.h"

#include <algorithm>

namespace perigee {

CacheKinds cache_kinds(const CacheShape& shape) {
  const int attention = static_cast<int>(shape.attention_has_index.size());
  const int indexed =
      static_cast<int>(std::count(shape.attention_has_index.begin(), shape.attention_has_index.end(), true));
  CacheKinds kinds;
  kinds.pages.push_back(
      {.name = "latent", .layers = attention, .entry_bytes = latent_bytes(shape.latent_format)});
  kinds.pages.push_back(
      {.name = "index key", .layers = indexed, .entry_bytes = index_key_bytes(shape.index_format)});
  if (shape.kda_layers > 0) {
    kinds.states.push_back({.name = "KDA state",
                            .layers = shape.kda_layers,
                            .heads = shape.kda_heads,
                            .record_bytes = kKdaRecordBytes});
    kinds.slot_bytes = shape.kda_layers * SlotLayout(shape.kda_heads).bytes;
  }
  return kinds;
}

int64_t CacheShape::bytes_per_token() const {
  int64_t bytes = 0;
  for (const PageKind& kind : cache_kinds(*this).pages) bytes += kind.layers * kind.entry_bytes;
  return bytes;
}

int64_t CacheShape::state_bytes() const { return int64_t{kda_layers} * kda_heads * kKdaRecordBytes; }

SlotLayout::SlotLayout(int heads) {
  const int64_t D = int64_t{heads} * kKdaHead, rows = KdaSlot::kRing;
  conv_input = 0;
  k = conv_input + rows * 3 * D * 2;
  G = k + rows * D * 2;
  w = G + rows * D * 4;
  T = w + rows * D * 4;
  bytes = T + rows * heads * kChunk * 4;
}

}  // namespace perigee
