// What a stage sees of the cache: the pages of an attention layer and the slot of a KDA layer, for one
// sequence. The owner of the memory (cache/) hands these out; stages know nothing of pools or rows.
#pragma once

#include <cstdint>

#include "formats/bf16.h"
#include "formats/cache_records.h"
#include "ops/plan.h"

namespace perigee {

// One layer's pages of a sequence: page i holds tokens 64·i … 64·i + 63, of every layer; a layer's records
// stand at offsets of its own.
struct PageTable {
  uint8_t* const* page = nullptr;  // [pages], the same for all layers of a sequence
  int64_t latent_offset = 0;       // bytes in a page: 64 latent records
  int64_t index_offset = 0;        // 64 index keys: all values, then all scales; with DSA
  bool has_index = false;
  LatentFormat latent_format = LatentFormat::kBf16;
  IndexKeyFormat index_format = IndexKeyFormat::kFp8;
  float latent_scale = 1.0f;  // static scale of the fp8 and nvfp4 latents of this layer

  uint8_t* latent(int64_t i) const { return page[i] + latent_offset; }
  uint8_t* index_key(int64_t i) const { return page[i] + index_offset; }
};

// One KDA layer's live state of a sequence. `state` stands at the chunk start `base`; a stored chunk end goes
// to `stored`, which is the same place unless somebody else reads `state` too, and is null when the step
// stores none. Heads lie a stride apart, other layers' between them. Rows of positions base … live in a ring
// by position mod kRing, which also holds the three conv inputs before base. Dropping rows un-does a draft.
struct KdaSlot {
  static constexpr int kRing = 32;
  const float* state = nullptr;  // [heads] · state_stride → [128 (key), 128 (value)] S at position *base
  int64_t state_stride = 0;      // floats
  float* stored = nullptr;       // [heads] · stored_stride → [128, 128]
  int64_t stored_stride = 0;
  int64_t* base = nullptr;     // multiple of 16
  bf16* conv_input = nullptr;  // [kRing, 3, D] pre-conv q, k, v
  bf16* k = nullptr;           // [kRing, D]
  float* G = nullptr;          // [kRing, D] log decay: since the chunk start (CPU), of the row alone (CUDA)
  float* w = nullptr;          // [kRing, D]
  float* T = nullptr;          // [kRing, heads, 16] the row of (I + A)⁻¹
};

// Rows of one step that belong to one sequence: consecutive rows, consecutive positions.
struct SequenceRows {
  int first_row = 0;
  int rows = 0;
  int64_t start = 0;  // position of first_row
  int64_t accepted =
      0;  // positions below this can no longer be dropped: chunk states up to here may be stored
};

// The stored chunk start after a step.
inline void move_base(const KdaSlot& slot, const SequenceRows& rows) {
  const int64_t accepted = rows.accepted / kChunk * kChunk;
  if (accepted > *slot.base) *slot.base = accepted;
}

}  // namespace perigee
