// How fast the indexer scores and selects at K3.1 Pro's sizes: 32 heads, fp8 keys, top 2048.
#include <fmt/format.h>

#include <random>

#include "bench/gpu/harness.h"
#include "ops/cuda/index_select.h"

namespace perigee::cuda::bench {
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

// An order key as a normal score has it.
uint16_t random_order(std::mt19937& random) {
  std::normal_distribution<float> normal;
  const bf16 score = float_to_bf16(normal(random));
  return static_cast<uint16_t>(score & 0x8000u ? 0x8000u - (score & 0x7FFFu) : 0x8000u + score);
}

}  // namespace

void index(Bench& bench) {
  const cudaStream_t stream = bench.stream();
  const Keys keys;
  const DeviceArray<float> weight = random_floats(int64_t{8192} * kHeads);
  const DeviceArray<bf16> query = random_bf16(int64_t{8192} * kHeads * kIndexKeyDim);
  DeviceArray<int32_t> selected(size_t{8192} * kTopK), count(8192);
  const DsaConfig config{.num_heads = kHeads, .top_k = kTopK, .layers = {}};

  // The two passes apart, in as many launches as the stage makes of them.
  constexpr int kAtOnce = 512;
  const DeviceArray<uint16_t> order = repeated<uint16_t>(int64_t{kAtOnce} * kContext, random_order);
  StepTables tables(bench.backend().memory());
  const Step prefill(keys, 8192), decode(keys, 1);
  const auto select = [&](const RowsView& view, int first, const uint16_t* from, int count_rows,
                          bool shared) {
    launch_index_select({.rows = view,
                         .top_k = kTopK,
                         .first_row = first,
                         .order = from,
                         .stride = kContext,
                         .selected = selected.data(),
                         .count = count.data()},
                        count_rows, shared, stream);
  };

  tables.begin(prefill.inputs());
  DeviceArray<uint16_t> scored(size_t{kAtOnce} * kContext);
  Arena scratch(bench.backend().memory());
  const double scores = bench.microseconds(1, [&](int) {
    const Arena::Scope scope(scratch);
    const PackedQuery packed = pack_index_query(query.data(), weight.data(), 8192, scratch, stream);
    for (int first = 0; first < 8192; first += kAtOnce) {
      launch_index_scores({.query = query.data(),
                           .weight = weight.data(),
                           .packed = packed,
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
  constexpr double kFp8Tflops = 1580;  // twice the bf16 rate
  const double flops = 8192.0 * kContext * kHeads * kIndexKeyDim * 2;
  bench.add({.name = "index_prefill",
             .value = scores / 1e3,
             .unit = "ms",
             .limit = flops / kFp8Tflops / 1e9,
             .target = 7.5,
             .peer = "DeepGEMM: public table",
             .peer_value = 10.5,
             .bound_by = "issue slots (56 %) beside the matrix unit (51 %), by ncu"});
  const double many = bench.microseconds(1, [&](int) {
    for (int first = 0; first < 8192; first += kAtOnce)
      select(tables.rows(), first, order.data(), kAtOnce, false);
  });
  bench.add({.name = "topk_8192",
             .value = many / 1e3,
             .unit = "ms",
             .limit = bench.limit_of_bytes(8192.0 * kContext * 2) / 1e3,
             .target = 0.8,
             .peer = "SGLang: public table, 2.1 to 3.5",
             .peer_value = 2.15});

  tables.begin(decode.inputs());
  const double one = bench.microseconds(
      kAtOnce, [&](int set) { select(tables.rows(), 0, order.data() + set * kContext, 1, true); });
  bench.add({.name = "topk_1",
             .value = one,
             .limit = bench.limit_of_bytes(kContext * 2.0),
             .target = 6,
             .peer = "SGLang: public table, 31 to 62",
             .peer_value = 31});

  // The stage as a whole.
  for (const auto& [step, sets] : {std::pair(&decode, 64), std::pair(&prefill, 1)}) {
    const int rows = step->sequences[0].rows;
    bench.backend().begin_step(step->inputs());
    const double us = bench.microseconds(sets, [&](int) {
      bench.backend().index_select({.config = config,
                                    .index_query = query.data(),
                                    .index_weight = weight.data(),
                                    .sequences = step->sequences,
                                    .pages = step->pages[0],
                                    .selected = selected.data(),
                                    .count = count.data()});
    });
    bench.add({.name = fmt::format("index_select_{}", rows),
               .value = us,
               .limit = rows == 1 ? bench.limit_of_bytes(kContext * 132.0) : flops / kFp8Tflops / 1e6});
  }
}

}  // namespace perigee::cuda::bench
