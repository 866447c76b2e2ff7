// kda_chunk on CUDA devices, in two kernels. kda_chunk_rows makes of each chunk and head what does not depend
// on S: decayed keys and queries, M and T, all chunks in parallel. kda_chunk_state then walks the chunks of a
// sequence, a slice of S's value columns a block. Decode, verification and prefill are the same two kernels.
#pragma once

#include <cuda_runtime_api.h>

#include "base/host_device.h"
#include "ops/cuda/split_operand.h"
#include "ops/cuda/step_tables.h"
#include "ops/ops.h"

namespace perigee::cuda {

constexpr int kKdaHead = 128;  // channels of a head, keys and values alike
// What kda_chunk_rows leaves for kda_chunk_state. Rows i, j are positions of the chunk, d its key channels.
struct KdaTile {
  SplitB decayed_k[8][2][32];  // e^{G_i} ⊙ k_i as B[k = d, n = i]: [d / 16][i / 8]; new rows only
  SplitB decayed_q[8][2][32];  // e^{G_i} ⊙ q_i
  SplitB commit_k[16][32];     // e^{G_15−G_j} ⊙ k_j as B[k = j, n = d]: [d / 8]; of a whole chunk
  float T[kChunk][kChunk];     // zero beyond the diagonal and in rows that do not exist
  float M[kChunk][kChunk];     // new rows only; zero beyond the diagonal
  float decay[kKdaHead];       // e^{G_15}; of a whole chunk
};

// Tiles of one step. A sequence has one for each chunk from its base on. Its rows alone bound their number:
// at most kRing − 1 rows lie between the base and the first row of the step.
struct KdaTiles {
  static constexpr int kSpare = 3;
  // Bounds the chunks of a sequence of `rows` rows.
  static constexpr int chunks(int rows) { return (rows + KdaSlot::kRing - 1 + kChunk - 1) / kChunk; }
  // The first tile of sequence `index`: chunks(rows) ≤ rows / 16 + kSpare, so that none overlap.
  PERIGEE_HD static int first(int first_row, int index) { return first_row / kChunk + kSpare * index; }
  static int64_t count(int rows, int sequences) {
    return int64_t{rows} / kChunk + kSpare * int64_t{sequences};
  }
};

struct KdaChunkLaunch {
  RowsView rows;
  const SlotView* slots;  // [sequences]
  const bf16* conv_input;
  const bf16 *q, *k, *v;
  const float *g, *beta;
  float* out;
  int heads;                   // of the layer: D = heads·128
  int first_head, head_count;  // of this launch
  int chunks_of_sequence;      // > 0: block b is of sequence b / chunks; 0: of the sequence that holds tile b
  int64_t tile_blocks;         // tiles that kda_chunk_rows looks at
  KdaTile* tiles;              // [tiles, head_count]
};

void launch_kda_chunk_rows(const KdaChunkLaunch& launch, cudaStream_t stream);
void launch_kda_chunk_state(const KdaChunkLaunch& launch, cudaStream_t stream);

}  // namespace perigee::cuda
