// index_select: scores a page of keys at a time, then a radix select for each row. A row that sees no more
// keys than it may keep takes them all without a score.
#include <algorithm>
#include <numeric>

#include "ops/cpu/fast/backend.h"
#include "ops/cpu/fast/scratch.h"
#include "ops/cpu/fast/sequence_kernels.h"
#include "ops/cpu/fast/top_k.h"

namespace perigee::cpu {

namespace {

// Rows scored before they are selected from: their keys stay below 8 MiB unless one row alone takes more.
constexpr int64_t kKeysAtOnce = 4 << 20;
// A page's keys are transposed once for as many rows; more rows make fewer, larger tasks.
constexpr int64_t kRowsPerTask = 256;

}  // namespace

void FastBackend::index_select(const IndexSelectArgs& a) {
  if (rule_broken(Rule::kSelection)) return PlainBackend::index_select(a);
  const SequenceKernels& kernels = *kernels_.sequence;
  const int heads = a.config.num_heads;
  const int64_t top_k = a.config.top_k;
  for (size_t s = 0; s < a.sequences.size(); ++s) {
    const SequenceRows& seq = a.sequences[s];
    const PageTable& pages = a.pages[s];
    const int64_t all = std::clamp<int64_t>(top_k - seq.start, 0, seq.rows);  // rows that keep every key
    for (int64_t i = 0; i < all; ++i) {
      int32_t* selected = a.selected + (seq.first_row + i) * top_k;
      const int64_t visible = seq.start + i + 1;
      std::iota(selected, selected + visible, 0);
      std::fill(selected + visible, selected + top_k, -1);
      a.count[seq.first_row + i] = static_cast<int32_t>(visible);
    }
    const int64_t padded = (seq.start + seq.rows + kPageTokens - 1) / kPageTokens * kPageTokens;
    const int64_t block = std::clamp<int64_t>(kKeysAtOnce / padded, 1, kRowsPerTask);
    for (int64_t first = all; first < seq.rows; first += block) {
      const int64_t rows = std::min<int64_t>(block, seq.rows - first);
      const int64_t last_visible = seq.start + first + rows;
      Arena& arena = thread_arena();
      const Arena::Scope scope(arena);
      auto* keys = arena.take<uint16_t>(rows * padded);  // [rows, padded]
      const int64_t row_floats = int64_t{heads} * kernels.index_query_floats;
      auto* query = arena.take<float>(rows * row_floats);
      pool_.run(rows, [&](int64_t i) {
        const bf16* from = a.index_query + (seq.first_row + first + i) * heads * kIndexKeyDim;
        for (int h = 0; h < heads; ++h) {
          kernels.prepare_index_query(from + int64_t{h} * kIndexKeyDim,
                                      query + i * row_floats + int64_t{h} * kernels.index_query_floats);
        }
      });
      pool_.run((last_visible + kPageTokens - 1) / kPageTokens, [&](int64_t page) {
        // The first row that sees the page: at position ≥ 64·page.
        const int64_t i = std::max<int64_t>(0, page * kPageTokens - seq.start - first);
        kernels.score_index_page(pages.index_format, pages.index_key(page),
                                 {.query = query + i * row_floats,
                                  .weight = a.index_weight + (seq.first_row + first + i) * heads,
                                  .rows = static_cast<int>(rows - i),
                                  .heads = heads,
                                  .key = keys + i * padded + page * kPageTokens,
                                  .stride = padded});
      });
      pool_.run(rows, [&](int64_t i) {
        const int64_t row = seq.first_row + first + i;
        select_top(keys + i * padded, seq.start + first + i + 1, top_k, a.selected + row * top_k);
        a.count[row] = static_cast<int32_t>(top_k);
      });
    }
  }
}

}  // namespace perigee::cpu
