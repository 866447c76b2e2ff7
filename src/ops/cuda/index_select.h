// The two passes of index_select and what lies between them: 16 bits a key and row (ops/order_key.h).
#pragma once

#include "ops/cuda/step_tables.h"

namespace perigee::cuda {

constexpr int kScoreBlockKeys = 256;
constexpr int kSharedRow = 8;  // blocks of a cluster that selects one long row

struct ScoreParameters {
  const bf16* query;    // [R, heads, 128]
  const float* weight;  // [R, heads]
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

// Scores of rows [first_row, end_row) for the keys they see; those of rows that see no more than they select
// are not written.
void launch_index_scores(const ScoreParameters& p, std::span<const SequenceRows> sequences,
                         cudaStream_t stream);

// Rows [first_row, first_row + rows). `shared`: kSharedRow blocks a row (sm_90).
void launch_index_select(const SelectParameters& p, int rows, bool shared, cudaStream_t stream);

}  // namespace perigee::cuda
