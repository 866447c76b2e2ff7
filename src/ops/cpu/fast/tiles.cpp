#include "ops/cpu/fast/tiles.h"

#include <algorithm>
#include <cstring>

#include "formats/mxfp4.h"

namespace perigee::cpu {

void tile_block(const Linear& w, const TileShape& shape, int64_t block, std::byte* tiles) {
  const int64_t first = block * kTileOutputs;
  const int outputs = static_cast<int>(std::min<int64_t>(kTileOutputs, shape.out - first));
  const int columns = shape.columns();
  const int64_t steps = k_blocks(columns);
  if (outputs < kTileOutputs) std::memset(tiles, 0, shape.block_bytes());
  for (int segment = 0; segment < shape.segments; ++segment) {
    for (int64_t step = 0; step < steps; ++step) {
      const int count = std::min<int>(32, columns - static_cast<int>(step) * 32);
      for (int o = 0; o < outputs; ++o) {
        bf16 values[32] = {};
        std::memcpy(values, w.weight + (first + o) * shape.in + segment * columns + step * 32,
                    count * sizeof(bf16));
        std::byte* to = tiles + (segment * steps + step) * kTileStep + o * 4;
        for (int i = 0; i < kTilePartials; ++i) {
          std::memcpy(to + i * shape.partial_bytes(), values + 2 * kPartialOrder[i], 4);
        }
      }
    }
  }
}

void tile_block(const Mxfp4Linear& w, const TileShape& shape, int64_t block, std::byte* tiles) {
  const int64_t first = block * kMxfp4Outputs;
  const int columns = shape.columns();
  const int64_t steps = k_blocks(columns);
  std::byte* pairs = tiles + shape.scale_bytes();
  std::memset(tiles, 0, shape.block_bytes());
  for (int at = 0; at < kMxfp4Outputs; ++at) {
    const int64_t o = first + kMxfp4Order[at];
    if (o >= shape.out) continue;
    const uint8_t* row = w.packed + o * (shape.in / 2);
    const uint8_t* scales = w.scale + o * (shape.in / kMxfp4Block);
    for (int64_t step = 0; step < shape.steps(); ++step) {
      const int column = static_cast<int>(step / steps) * columns + static_cast<int>(step % steps) * 32;
      const int count = std::min<int>(32, columns - static_cast<int>(step % steps) * 32);
      tiles[step * kMxfp4Outputs + at] = static_cast<std::byte>(scales[column / kMxfp4Block]);
      for (int i = 0; i < kTilePartials; ++i) {
        const int pair = kPartialOrder[i];
        if (2 * pair >= count) continue;
        pairs[i * shape.partial_bytes() + step * kMxfp4Step + at] =
            static_cast<std::byte>(row[column / 2 + pair]);
      }
    }
  }
}

}  // namespace perigee::cpu
