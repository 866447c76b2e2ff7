// The (row, choice) entries of a step ordered by expert, on the device.
#pragma once

#include <algorithm>

#include "ops/cuda/backend.h"
#include "ops/cuda/cuda_check.h"

namespace perigee::cuda {

// A tile of entries of one expert: order[first, first + count).
struct Tile {
  int expert, first, count;
};

// Entries ascend inside an expert's tiles in no certain order, which no result depends on. A single row's
// entries are their own tiles: then `tiles` is null and nothing has been computed.
struct Grouping {
  const int32_t* experts = nullptr;  // [entries]
  int* order = nullptr;              // [entries]
  Tile* tiles = nullptr;             // [most_tiles], behind the last one empty
  int* tile_count = nullptr;         // [1]
  int most_tiles = 0;                // known to the host

  __device__ int count() const { return tiles ? *tile_count : most_tiles; }
  __device__ Tile tile(int i) const { return tiles ? tiles[i] : Tile{experts[i], i, 1}; }
  __device__ int entry(int i) const { return tiles ? order[i] : i; }
};

// `entries` of `choices` a row, in tiles of at most `tile` entries. The arrays live in `scratch`.
Grouping group_by_expert(const int32_t* experts, int entries, int choices, int expert_count, int tile,
                         Arena& scratch, cudaStream_t stream);

}  // namespace perigee::cuda
