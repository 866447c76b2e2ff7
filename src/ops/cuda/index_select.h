// The two passes of index_select and what lies between them: 16 bits a key and row (ops/order_key.h).
#pragma once

#include "base/arena.h"
#include "ops/cuda/step_tables.h"

namespace perigee::cuda {

constexpr int kScoreBlockKeys = 256;
constexpr int kSharedRow = 8;  // blocks of a cluster that selects one long row

// Index queries of kPackedHeads heads as products of e4m3 read them: a tile of wgmma.cuh a row, with a head a
// row of it (column_of_head) of 128 values. Null where scores are made from bf16.
constexpr int kPackedHeads = 32;
struct PackedQuery {
  const uint8_t* code = nullptr;  // [R, 32, 128], and room for what a block copies behind the last
  const float* weight = nullptr;  // [R, 32] by head, likewise
};

struct ScoreParameters {
  const bf16* query;    // [R, heads, 128]
  const float* weight;  // [R, heads]
  PackedQuery packed;
  RowsView rows;
  PagesView pages;
  int heads, top_k;
  int first_row, end_row;
  uint16_t* order;  // [rows of the launch, stride] order keys
  int64_t stride;   // a multiple of kScoreBlockKeys
};

struct SelectParameters {
  RowsView rows;
  int top_k, first_row;
  const uint16_t* order;  // [rows of the launch, stride]
  int64_t stride;
  int32_t* selected;  // [R, top_k]
  int32_t* count;     // [R]
};

// What of a launch there is to score, for sizing it: rows that see no more keys than they select are left
// out.
struct ScoredRows {
  int most_rows = 0;       // of a sequence
  int64_t key_blocks = 0;  // of kScoreBlockKeys, of a sequence at most
  int64_t pairs = 0;       // of key blocks and rows
  ScoredRows(const ScoreParameters& p, std::span<const SequenceRows> sequences);
};

// Scores of rows [first_row, end_row) for the keys they see; those of rows that see no more than they select
// are not written.
void launch_index_scores(const ScoreParameters& p, std::span<const SequenceRows> sequences,
                         cudaStream_t stream);

// The same from fp8 keys and packed queries (sm_90), and the packing of all rows.
void launch_index_scores_fp8(const ScoreParameters& p, std::span<const SequenceRows> sequences,
                             cudaStream_t stream);
PackedQuery pack_index_query(const bf16* query, const float* weight, int rows, Arena& scratch,
                             cudaStream_t stream);

// Rows [first_row, first_row + rows). `shared`: kSharedRow blocks a row (sm_90).
void launch_index_select(const SelectParameters& p, int rows, bool shared, cudaStream_t stream);

}  // namespace perigee::cuda
