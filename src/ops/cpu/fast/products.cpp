#include "ops/cpu/fast/products.h"

#include <algorithm>

namespace perigee::cpu {

namespace {

constexpr int kMostRows = 16;       // of a tile of any kernel
constexpr int kMostTaskBlocks = 4;  // output blocks of a task: a tile of rows is read once for all of them

// Rows [begin(t), begin(t + 1)) are tile t.
struct RowTiles {
  int rows, count;
  RowTiles(int rows, int most) : rows(rows), count((rows + most - 1) / most) {}
  int begin(int tile) const { return static_cast<int>(int64_t{rows} * tile / count); }
};

// A workspace of this thread, kept between tasks.
template <typename T, int kind>
T* scratch(size_t count) {
  thread_local std::vector<T> memory;
  if (memory.size() < count) memory.resize(count);
  return memory.data();
}

}  // namespace

std::vector<SpreadRows> Products::spread(std::span<const Rows> all) {
  const auto row_bytes = [&](int k) { return k_blocks(k) * kTilePartials * kernels_.operand_bytes; };
  int64_t bytes = 0;
  for (const Rows& x : all) bytes += x.rows * row_bytes(x.k);
  auto* data = arena_.take<std::byte>(bytes);
  std::vector<SpreadRows> out;
  std::vector<int64_t> first_tile = {0};
  for (const Rows& x : all) {
    out.push_back({data, x.rows, x.k});
    data += x.rows * row_bytes(x.k);
    first_tile.push_back(first_tile.back() + RowTiles(x.rows, kernels_.rows).count);
  }
  pool_.run(first_tile.back(), [&](int64_t tile) {
    const auto at = std::upper_bound(first_tile.begin(), first_tile.end(), tile) - first_tile.begin() - 1;
    const Rows& x = all[at];
    const RowTiles tiles(x.rows, kernels_.rows);
    const int t = static_cast<int>(tile - first_tile[at]);
    const bf16* rows[kMostRows];
    const int begin = tiles.begin(t), end = tiles.begin(t + 1);
    for (int r = begin; r < end; ++r) rows[r - begin] = x.row(r);
    kernels_.spread(rows, end - begin, x.k, out[at].data + begin * row_bytes(x.k));
  });
  return out;
}

void Products::run(std::span<const Product> products) {
  const auto blocks_of = [](const Product& p) {
    const int outputs = p.weight.shape.outputs();
    return int64_t{p.outputs + outputs - 1} / outputs;
  };
  int64_t blocks = 0;
  for (const Product& p : products) blocks += blocks_of(p);
  // Few blocks a task when there are few in all, so that every thread has work.
  const int64_t most = std::clamp<int64_t>(blocks / (4 * pool_.threads()), 1, kMostTaskBlocks);
  const auto per_task = [&](const Product& p) { return p.weight.shape.mxfp4 ? 1 : most; };
  std::vector<int64_t> first_task = {0};
  for (const Product& p : products)
    first_task.push_back(first_task.back() + (blocks_of(p) + per_task(p) - 1) / per_task(p));
  pool_.run(first_task.back(), [&](int64_t task) {
    const auto at = std::upper_bound(first_task.begin(), first_task.end(), task) - first_task.begin() - 1;
    const Product& p = products[at];
    const int64_t begin = (task - first_task[at]) * per_task(p);
    if (p.weight.shape.mxfp4) {
      compute_mxfp4(p, begin);
    } else {
      compute(p, begin, std::min(blocks_of(p), begin + per_task(p)));
    }
  });
}

void Products::compute(const Product& p, int64_t begin, int64_t end) {
  constexpr int kStride = kMostTaskBlocks * kTileOutputs;
  alignas(64) float y[2][kMostRows][kStride];
  const int64_t steps = k_blocks(p.x.k), row_bytes = steps * kTilePartials * kernels_.operand_bytes;
  const int first = static_cast<int>(begin) * kTileOutputs;
  const int count = std::min(p.outputs, static_cast<int>(end) * kTileOutputs) - first;
  const RowTiles tiles(p.x.rows, kernels_.rows);
  for (int t = 0; t < tiles.count; ++t) {
    const int row = tiles.begin(t), rows = tiles.begin(t + 1) - row;
    for (int side = 0; side < (p.paired.tiles ? 2 : 1); ++side) {
      const TiledMatrix& w = side ? p.paired : p.weight;
      for (int64_t b = begin; b < end; ++b) {
        kernels_.product({.tiles = w.tiles + (p.first_output / kTileOutputs + b) * w.shape.block_bytes() +
                                   p.segment * steps * kTileStep,
                          .quad_bytes = w.shape.quad_bytes(),
                          .steps = steps,
                          .x = p.x.data + row * row_bytes,
                          .rows = rows,
                          .y = y[side][0] + (b - begin) * kTileOutputs,
                          .y_stride = kStride});
      }
    }
    for (int r = 0; r < rows; ++r) p.sink(row + r, first, count, y[0][r], y[1][r]);
  }
}

void Products::compute_mxfp4(const Product& p, int64_t block) {
  alignas(64) float y[2][kMostRows][kMxfp4Outputs];
  const int64_t steps = k_blocks(p.x.k), row_bytes = steps * kTilePartials * kernels_.operand_bytes;
  const int64_t expanded_bytes = 4 * steps * kTileStep;  // of 16 outputs
  const int sides = p.paired.tiles ? 2 : 1;
  const bool expand = p.x.rows > kernels_.mxfp4_rows;
  float* scale = scratch<float, 0>(2 * steps * kMxfp4Outputs);
  std::byte* expanded = expand ? scratch<std::byte, 1>(4 * expanded_bytes) : nullptr;
  const std::byte* pairs[2];
  for (int side = 0; side < sides; ++side) {
    const TiledMatrix& w = side ? p.paired : p.weight;
    const std::byte* at = w.tiles + (p.first_output / kMxfp4Outputs + block) * w.shape.block_bytes();
    pairs[side] = at + w.shape.scale_bytes() + p.segment * steps * kMxfp4Step;
    float* s = scale + side * steps * kMxfp4Outputs;
    kernels_.mxfp4_scales(at + p.segment * steps * kMxfp4Outputs, steps, s);
    if (expand) {
      kernels_.mxfp4_expand({.tiles = pairs[side],
                             .quad_bytes = w.shape.quad_bytes(),
                             .steps = steps,
                             .scale = s,
                             .out = expanded + side * 2 * expanded_bytes});
    }
  }
  const int first = static_cast<int>(block) * kMxfp4Outputs;
  const int count = std::min(p.outputs - first, kMxfp4Outputs);
  const RowTiles tiles(p.x.rows, kernels_.rows);
  for (int t = 0; t < tiles.count; ++t) {
    const int row = tiles.begin(t), rows = tiles.begin(t + 1) - row;
    const std::byte* x = p.x.data + row * row_bytes;
    for (int side = 0; side < sides; ++side) {
      if (!expand) {
        kernels_.mxfp4_product({.tiles = pairs[side],
                                .quad_bytes = p.weight.shape.quad_bytes(),
                                .steps = steps,
                                .scale = scale + side * steps * kMxfp4Outputs,
                                .x = x,
                                .rows = rows,
                                .y = y[side][0],
                                .y_stride = kMxfp4Outputs});
        continue;
      }
      for (int half = 0; half < 2; ++half) {
        kernels_.product({.tiles = expanded + (2 * side + half) * expanded_bytes,
                          .quad_bytes = steps * kTileStep,
                          .steps = steps,
                          .x = x,
                          .rows = rows,
                          .y = y[side][0] + half * kTileOutputs,
                          .y_stride = kMxfp4Outputs});
      }
    }
    for (int r = 0; r < rows; ++r) p.sink(row + r, first, count, y[0][r], y[1][r]);
  }
}

}  // namespace perigee::cpu
