// How fast sparse_attend runs at K3.1 Pro's sizes: decode of 8 rows at TP8, prefill of 8,192 rows at TP1.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "bench/gpu/harness.h"

namespace perigee::cuda::bench {
namespace {

constexpr int kTopK = 2048;

// Pages of fp8 latents of several layers, for sequences of equal length.
struct Cache {
  int layers, sequences;
  int64_t pages, layer_bytes = kPageTokens * latent_bytes(LatentFormat::kFp8);
  DeviceArray<uint8_t> bytes;
  std::vector<uint8_t*> page;  // [sequences, pages]

  Cache(int layers, int sequences, int64_t tokens)
      : layers(layers), sequences(sequences), pages(tokens / kPageTokens) {
    std::normal_distribution<float> normal;
    bytes = repeated<uint8_t>(layers * layer_bytes * sequences * pages,
                              [&](std::mt19937& r) { return float_to_e4m3(normal(r)); });
    for (int64_t i = 0; i < sequences * pages; ++i) page.push_back(bytes.data() + i * layers * layer_bytes);
  }
  std::vector<PageTable> tables(int layer) const {
    std::vector<PageTable> out;
    for (int s = 0; s < sequences; ++s) {
      out.push_back({.page = page.data() + s * pages,
                     .latent_offset = layer * layer_bytes,
                     .latent_format = LatentFormat::kFp8});
    }
    return out;
  }
};

// Ascending positions spread at random over those that a row sees.
std::vector<int32_t> random_selection(const std::vector<SequenceRows>& sequences) {
  std::mt19937 random(3);
  std::vector<int32_t> out;
  for (const SequenceRows& s : sequences) {
    for (int r = 0; r < s.rows; ++r) {
      const double width = static_cast<double>(s.start + r + 1) / kTopK;
      for (int j = 0; j < kTopK; ++j) {
        const double u = static_cast<double>(random() % 4096) / 4096;
        out.push_back(static_cast<int32_t>(std::min((j + u) * width, (j + 1) * width - 1)));
      }
    }
  }
  return out;
}

struct Shape {
  int sequences, rows;  // rows a sequence
  int64_t context;
  int heads, layers;
};

double microseconds(const Shape& shape, Bench& bench) {
  CudaBackend& backend = bench.backend();
  const Cache cache(shape.layers, shape.sequences, shape.context);
  const int rows = shape.sequences * shape.rows;
  std::vector<SequenceRows> sequences;
  for (int s = 0; s < shape.sequences; ++s) {
    sequences.push_back({.first_row = s * shape.rows,
                         .rows = shape.rows,
                         .start = shape.context - shape.rows,
                         .accepted = shape.context});
  }
  const std::vector<int32_t> host = random_selection(sequences), counts(rows, kTopK), tokens(rows);
  const DeviceArray<int32_t> selected{std::span(host)}, count{std::span(counts)};
  const DeviceArray<bf16> query = random_bf16(int64_t{rows} * shape.heads * kLatentDim);
  DeviceArray<bf16> out(size_t{1} * rows * shape.heads * kLatentRank);
  std::vector<std::vector<PageTable>> pages;
  for (int layer = 0; layer < shape.layers; ++layer) pages.push_back(cache.tables(layer));
  const std::vector<int64_t> page_count(shape.sequences, cache.pages);
  backend.begin_step({.tokens = tokens,
                      .logit_rows = {},
                      .sequences = sequences,
                      .slots = {},
                      .pages = pages,
                      .page_count = page_count});
  const MlaConfig config{.num_heads = shape.heads};
  return bench.microseconds(shape.layers, [&](int layer) {
    backend.sparse_attend({.config = config,
                           .query = query.data(),
                           .sequences = sequences,
                           .pages = pages[layer],
                           .selected = selected.data(),
                           .count = count.data(),
                           .top_k = kTopK,
                           .attention_lanes = 1,
                           .dense_segment = 4096,
                           .out = out.data()});
  });
}

}  // namespace

void attend(Bench& bench) {
  for (int batch : {1, 8, 64}) {
    const double us =
        microseconds({.sequences = batch, .rows = 1, .context = 8192, .heads = 12, .layers = 16}, bench);
    bench.add({.name = fmt::format("attend_decode_{}", batch),
               .value = us,
               .limit = bench.limit_of_bytes(batch * kTopK * 576.0),
               .target = batch == 8 ? 10.0 : 0.0,
               .peer = batch == 8 ? "FlashMLA 22.8, TileLang 16.8: public, 8 heads" : "",
               .peer_value = batch == 8 ? 16.8 : 0.0});
  }
  for (int heads : {12, 96}) {
    const double us =
        microseconds({.sequences = 1, .rows = 8192, .context = 131072, .heads = heads, .layers = 1}, bench);
    const double flops = 8192.0 * heads * kTopK * (kLatentDim + kLatentRank) * 2;
    bench.add({.name = heads == 96 ? "attend_prefill" : "attend_prefill_12_heads",
               .value = flops / us / 1e6,
               .unit = "TFLOP/s",
               .limit = kBf16Tflops,
               .target = heads == 96 ? 600.0 : 0.0,
               .peer = heads == 96 ? "flash_mla_sparse_fwd, 64 heads: public table" : "",
               .peer_value = heads == 96 ? 585.0 : 0.0});
  }
}

}  // namespace perigee::cuda::bench
