// How fast the indexer scores and selects at K3.1 Pro's sizes: 32 heads, fp8 keys, top 2048.
#include <fmt/format.h>

#include "measure.h"
#include "ops/cuda/index_select.h"

namespace perigee::cuda {
namespace {

constexpr int kHeads = 32, kTopK = 2048;
constexpr int64_t kContext = 131072;

// One sequence's pages of fp8 index keys.
struct Keys {
  int64_t pages = kContext / kPageTokens;
  DeviceArray<uint8_t> bytes;
  std::vector<uint8_t*> page;

  Keys() {
    std::mt19937 random(4);
    std::normal_distribution<float> normal;
    constexpr IndexKeyFormat kFormat = IndexKeyFormat::kFp8;
    std::vector<uint8_t> all(static_cast<size_t>(pages) * index_page_bytes(kFormat));
    for (int64_t p = 0; p < kContext; ++p) {
      float x[kIndexKeyDim];
      for (float& v : x) v = normal(random);
      uint8_t* to = all.data() + p / kPageTokens * index_page_bytes(kFormat);
      const int in_page = static_cast<int>(p % kPageTokens);
      encode_index_key(kFormat, x, to + index_value_offset(kFormat, in_page),
                       to + index_scale_offset(kFormat, in_page));
    }
    bytes = DeviceArray<uint8_t>(std::span<const uint8_t>(all));
    for (int64_t i = 0; i < pages; ++i) page.push_back(bytes.data() + i * index_page_bytes(kFormat));
  }
};

struct Step {
  std::vector<int32_t> tokens;
  std::vector<SequenceRows> sequences;
  std::vector<std::vector<PageTable>> pages;
  std::vector<int64_t> page_count;

  Step(const Keys& keys, int rows) : tokens(rows), page_count{keys.pages} {
    sequences = {{.first_row = 0, .rows = rows, .start = kContext - rows, .accepted = kContext}};
    pages = {{{.page = keys.page.data(), .has_index = true, .index_format = IndexKeyFormat::kFp8}}};
  }
  StepInputs inputs() const {
    return {.tokens = tokens,
            .logit_rows = {},
            .sequences = sequences,
            .slots = {},
            .pages = pages,
            .page_count = page_count};
  }
};

// Order keys as scores of normal keys have them: sums of 32 terms of both signs.
std::vector<uint16_t> random_order(size_t count) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> out(count);
  for (uint16_t& x : out) {
    const bf16 score = float_to_bf16(normal(random));
    x = static_cast<uint16_t>(score & 0x8000u ? 0x8000u - (score & 0x7FFFu) : 0x8000u + score);
  }
  return out;
}

}  // namespace

std::vector<Row> measure_index(CudaBackend& backend, double copy) {
  const cudaStream_t stream = backend.memory().stream();
  std::vector<Row> rows;
  const Keys keys;
  const std::vector<float> host_weights = [] {
    std::mt19937 random(6);
    std::normal_distribution<float> normal;
    std::vector<float> out(8192 * kHeads);
    for (float& x : out) x = normal(random);
    return out;
  }();
  const DeviceArray<float> weight{std::span(host_weights)};
  const DeviceArray<bf16> query = random_array(size_t{8192} * kHeads * kIndexKeyDim);
  DeviceArray<int32_t> selected(size_t{8192} * kTopK), count(8192);
  const DsaConfig config{.num_heads = kHeads, .top_k = kTopK, .layers = {}};

  // The two passes apart, in as many launches as the stage makes of them.
  constexpr int kAtOnce = 512;
  const DeviceArray<uint16_t> order = repeated_array(size_t{kAtOnce} * kContext, random_order(7'000'003));
  DeviceArray<int> histogram(size_t{16} * kSharedRow * 2 * kOrderBins);
  StepTables tables(backend.memory());
  const Step prefill(keys, 8192), decode(keys, 1);
  const auto select = [&](const RowsView& view, int first, const uint16_t* from, int count_rows,
                          bool shared) {
    launch_index_select({.rows = view,
                         .top_k = kTopK,
                         .first_row = first,
                         .order = from,
                         .stride = kContext,
                         .histogram = histogram.data(),
                         .selected = selected.data(),
                         .count = count.data()},
                        count_rows, shared, stream);
  };

  tables.begin(prefill.inputs());
  DeviceArray<uint16_t> scored(size_t{kAtOnce} * kContext);
  const Time scores = time_in_graph(stream, 1, [&](int) {
    for (int first = 0; first < 8192; first += kAtOnce) {
      launch_index_scores({.query = query.data(),
                           .weight = weight.data(),
                           .rows = tables.rows(),
                           .pages = tables.pages(prefill.pages[0]),
                           .heads = kHeads,
                           .top_k = kTopK,
                           .first_row = first,
                           .end_row = first + kAtOnce,
                           .order = scored.data(),
                           .stride = kContext},
                          prefill.sequences, stream);
    }
  });
  const double flops = 8192.0 * kContext * kHeads * kIndexKeyDim * 2;
  rows.push_back({.name = "index_prefill (8192 queries, 131072 keys, fp8)",
                  .value = scores.microseconds / 1e3,
                  .unit = "ms",
                  .limit = flops / 1580e12 * 1e3,
                  .target = 7.5,
                  .limit_by = "fp8 products, 1580 TFLOP/s",
                  .peer = "DeepGEMM: public table",
                  .peer_value = 10.5,
                  .microseconds = scores.microseconds,
                  .spread = scores.spread});
  const Time many = time_in_graph(stream, 1, [&](int) {
    for (int first = 0; first < 8192; first += kAtOnce)
      select(tables.rows(), first, order.data(), kAtOnce, false);
  });
  rows.push_back({.name = "topk_8192 (2048 of 131072)",
                  .value = many.microseconds / 1e3,
                  .unit = "ms",
                  .limit = 8192.0 * kContext * 2 / copy / 1e6,
                  .target = 0.8,
                  .limit_by = "copy bandwidth, 16-bit keys once",
                  .peer = "SGLang: public table, 2.1 to 3.5",
                  .peer_value = 2.15,
                  .microseconds = many.microseconds,
                  .spread = many.spread});

  tables.begin(decode.inputs());
  const Time one = time_in_graph(
      stream, kAtOnce, [&](int set) { select(tables.rows(), 0, order.data() + set * kContext, 1, true); });
  rows.push_back({.name = "topk_1 (2048 of 131072)",
                  .value = one.microseconds,
                  .unit = "us",
                  .limit = kContext * 2.0 / copy / 1e3,
                  .target = 6,
                  .limit_by = "copy bandwidth, 16-bit keys once",
                  .peer = "SGLang: public table, 31 to 62",
                  .peer_value = 31,
                  .microseconds = one.microseconds,
                  .spread = one.spread});

  // The stage as a whole.
  for (const auto& [step, sets] : {std::pair(&decode, 64), std::pair(&prefill, 1)}) {
    const int step_rows = step->sequences[0].rows;
    backend.begin_step(step->inputs());
    const Time t = time_in_graph(stream, sets, [&](int) {
      backend.index_select({.config = config,
                            .index_query = query.data(),
                            .index_weight = weight.data(),
                            .sequences = step->sequences,
                            .pages = step->pages[0],
                            .selected = selected.data(),
                            .count = count.data()});
    });
    rows.push_back(
        {.name = fmt::format("index_select_{} (scores and selection, 131072 keys, fp8)", step_rows),
         .value = t.microseconds,
         .unit = "us",
         .limit = step_rows == 1 ? kContext * 132.0 / copy / 1e3 : flops / 1580e12 * 1e6,
         .limit_by = step_rows == 1 ? "copy bandwidth" : "fp8 products, 1580 TFLOP/s",
         .microseconds = t.microseconds,
         .spread = t.spread});
  }
  return rows;
}

}  // namespace perigee::cuda
