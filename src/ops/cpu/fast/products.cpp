#include "ops/cpu/fast/products.h"

#include <algorithm>

namespace perigee::cpu {

namespace {

// Rows are computed in chunks of kMostProductRows.
int chunks(int rows) { return (rows + kMostProductRows - 1) / kMostProductRows; }

// A workspace of this thread, kept between tasks.
std::byte* scratch(int64_t bytes) {
  thread_local MemoryBlock memory;
  if (memory.bytes() < bytes) memory = MemoryBlock(host_memory(), bytes);
  return memory.data();
}

}  // namespace

std::vector<SpreadRows> Products::spread(std::span<const Rows> all) {
  const auto row_bytes = [&](int k) { return k_blocks(k) * kTilePartials * kernels_.operand_bytes; };
  int64_t bytes = 0;
  for (const Rows& x : all) bytes += x.rows * row_bytes(x.k);
  auto* data = arena_.take<std::byte>(bytes);
  std::vector<SpreadRows> out;
  std::vector<int64_t> first_chunk = {0};
  for (const Rows& x : all) {
    out.push_back({data, x.rows, x.k});
    data += x.rows * row_bytes(x.k);
    first_chunk.push_back(first_chunk.back() + chunks(x.rows));
  }
  pool_.run(first_chunk.back(), [&](int64_t chunk) {
    const auto at = std::upper_bound(first_chunk.begin(), first_chunk.end(), chunk) - first_chunk.begin() - 1;
    const Rows& x = all[at];
    const int begin = static_cast<int>(chunk - first_chunk[at]) * kMostProductRows;
    const int count = std::min(kMostProductRows, x.rows - begin);
    const bf16* rows[kMostProductRows];
    for (int r = 0; r < count; ++r) rows[r] = x.row(begin + r);
    kernels_.spread(rows, count, x.k, x.mxfp4, out[at].data + begin * row_bytes(x.k));
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
  const int64_t most = std::clamp<int64_t>(blocks / (4 * pool_.threads()), 1, kMostProductBlocks);
  const auto per_task = [&](const Product& p) { return p.weight.shape.mxfp4 ? 1 : most; };
  std::vector<int64_t> first_task = {0};
  for (const Product& p : products)
    first_task.push_back(first_task.back() + (blocks_of(p) + per_task(p) - 1) / per_task(p));
  pool_.run(first_task.back(), [&](int64_t task) {
    const auto at = std::upper_bound(first_task.begin(), first_task.end(), task) - first_task.begin() - 1;
    const Product& p = products[at];
    const int64_t begin = (task - first_task[at]) * per_task(p);
    compute(p, begin, std::min(blocks_of(p), begin + per_task(p)));
  });
}

void Products::compute(const Product& p, int64_t begin, int64_t end) {
  constexpr int kStride = kMostProductBlocks * kTileOutputs;
  const TileShape& shape = p.weight.shape;
  const int64_t steps = k_blocks(p.x.k), row_bytes = steps * kTilePartials * kernels_.operand_bytes;
  const int64_t outputs = shape.outputs(), block_bytes = shape.block_bytes();
  const int sides = p.paired.tiles ? 2 : 1;
  const int first = static_cast<int>(begin * outputs);
  const int count = std::min(p.outputs, static_cast<int>(end * outputs)) - first;
  const std::byte* tiles[2] = {p.weight.tiles, p.paired.tiles};

  const int64_t y_floats = int64_t{sides} * std::min(p.x.rows, kMostProductRows) * kStride;
  const int64_t scale_floats = shape.mxfp4 ? sides * steps * kMxfp4Outputs : 0;
  auto* y = reinterpret_cast<float*>(
      scratch((y_floats + scale_floats) * sizeof(float) + kernels_.scratch_bytes(steps)));
  float* scale = y + y_floats;
  auto* work = reinterpret_cast<std::byte*>(scale + scale_floats);
  const auto block_of = [&](int side, int64_t b) {
    return tiles[side] + (p.first_output / outputs + b) * block_bytes;
  };
  for (int side = 0; side < sides && shape.mxfp4; ++side) {  // a task has one block then
    kernels_.mxfp4_scales(block_of(side, begin) + p.segment * steps * kMxfp4Outputs, steps,
                          scale + side * steps * kMxfp4Outputs);
  }
  for (int row = 0; row < p.x.rows; row += kMostProductRows) {
    const int rows = std::min(kMostProductRows, p.x.rows - row);
    for (int side = 0; side < sides; ++side) {
      const ProductArgs args{
          .tiles = block_of(side, begin) + shape.scale_bytes() + p.segment * steps * shape.step_bytes(),
          .block_bytes = block_bytes,
          .partial_bytes = shape.partial_bytes(),
          .blocks = static_cast<int>(end - begin),
          .steps = steps,
          .scale = scale + side * steps * kMxfp4Outputs,
          .x = p.x.data + row * row_bytes,
          .rows = rows,
          .scratch = work,
          .y = y + int64_t{side} * rows * kStride,
          .y_stride = kStride};
      shape.mxfp4 ? kernels_.mxfp4_product(args) : kernels_.product(args);
    }
    for (int r = 0; r < rows; ++r) {
      const float* sums = y + int64_t{r} * kStride;
      p.sink(row + r, first, count, sums, sums + int64_t{rows} * kStride);
    }
  }
}

}  // namespace perigee::cpu
