// kda_chunk on CUDA devices. Sequences with few rows in a step (decoding, verification) take one kernel,
// kda_decode; the others two: kda_chunk_rows makes of each chunk and head what does not depend on S, all
// chunks in parallel, and kda_chunk_state walks the chunks, a slice of S's value columns a block. All are the
// same sums in the same order, the terms of kda_terms.cuh:
//
//   e^{G_i−G_j} is a product of the e^{g_l}, l = j + 1 … i: rows form groups of four; inside a group the
//   factors are multiplied as they are, between groups it is (i's group up to i) · (whole groups and the
//   first row of i's) · (j's group after j). No factor is above one, whatever the decay. Only the decay of S
//   over a chunk, which long memories take to high powers, is one exponential of a sum.
//   A and M: four neighbouring channels a lane, then the lanes with strides 16 … 1; fp32.
//   T: chains over l. M' = M T and k' = Tᵀ (e^{G_15−G_j} k_j): chains of fp32, so that neither the output nor
//   the state waits for u = T w:
//   w_i = β_i (v_i − (e^{G_i}⊙k_i)ᵀS₀),  o_i = (e^{G_i}⊙q_i)ᵀS₀ + Σ_{j≤i} M'_ij w_j,
//   S₁ = diag(e^{G_15})S₀ + Σ_j k'_j w_jᵀ.
//   Products with S, w: split_mma.cuh; over key channels four chains of 32, added as (0 + 1) + (2 + 3).
//
// What is not finite in w_j makes rows j … of that value column NaN, and no earlier row.
#pragma once

#include <cuda_runtime_api.h>

#include "base/host_device.h"
#include "ops/cuda/split_operand.h"
#include "ops/cuda/step_tables.h"
#include "ops/ops.h"

namespace perigee::cuda {

constexpr int kKdaHead = 128;  // channels of a head, keys and values alike

// Sequences with at most this many rows in a step are kda_decode's.
constexpr int kKdaDecodeRows = 8;
PERIGEE_HD inline bool kda_decodes(const SequenceRows& s) { return s.rows <= kKdaDecodeRows; }

// What kda_chunk_rows leaves for kda_chunk_state; operands as split_mma.cuh has them. Rows i, j are positions
// of the chunk, d its key channels; [16] of either is [tile][column].
struct KdaTile {
  SplitB decayed_k[8][2][32];  // e^{G_i} ⊙ k_i as B[k = d, n = i]: [d / 16][tile of i]
  SplitB decayed_q[8][2][32];  // e^{G_i} ⊙ q_i
  SplitB commit_k[8][2][32];   // k'_j as B[k = j, n = d]: [d / 16][tile of d]; of a whole chunk
  SplitB M[2][32];             // M' as B[k = j, n = i]: [tile of i]
  float decay[kKdaHead];       // e^{G_15}; of a whole chunk
  float beta[kChunk];          // of new rows; 0
  // For the ring alone; the walk does without.
  float T[kChunk][kChunk];  // zero beyond the diagonal and in rows that do not exist; where rows are kept
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

// All heads; right after kda_conv_norm_gate, whose end it awaits itself: states and rings of `slots` must not
// be what the kernel before it writes.
void launch_kda_decode(const KdaChunkLaunch& launch, cudaStream_t stream);
void launch_kda_chunk_rows(const KdaChunkLaunch& launch, cudaStream_t stream);
// After kda_chunk_rows, which reads rows whose places in the ring this one takes.
void launch_kda_chunk_state(const KdaChunkLaunch& launch, cudaStream_t stream);

}  // namespace perigee::cuda
