// Raw kernels of the sequence stages: pointers and sizes, no allocation, no threads. The stages' own files
// (select.cpp, attend.cpp, kda.cpp, …) cut the work into tasks. Compiled once per instruction set (simd.h).
#pragma once

#include <cstdint>

#include "formats/bf16.h"
#include "formats/cache_records.h"
#include "ops/plan.h"

namespace perigee::cpu {

// --- index_select

constexpr int kIndexPairs = kIndexKeyDim / 2;

// What some rows score the keys of a page at.
struct IndexScores {
  const float* query;   // [rows, heads, index_query_floats] as prepare_index_query wrote them
  const float* weight;  // [rows, heads]
  int rows, heads;
  uint16_t* key;  // [rows, 64] by `stride`, out: the scores as integers that order as the selection rule
                  // does, NaN 0
  int64_t stride;
};

// --- sparse_attend, dense_attend

// A walk over keys, of some heads of one row: what add_tile carries from tile to tile.
struct AttendWalk {
  const float* query;  // [heads, query_floats] as prepare_query wrote them
  int heads;
  float scale;   // of the logits
  float* max;    // [heads] unset before the first tile
  float* sum;    // [heads]
  float* value;  // [heads, 512]
};
struct AttendTile {
  const bf16* const* key;  // [count] decoded latents
  int count;               // 1 … kKeyTile
  bool first;              // of the walk
};

// --- kda_conv_norm_gate, kda_chunk

constexpr int kKdaHead = 128;  // channels of a head, keys and values alike

// One part (q, k or v) of one head of one row.
struct KdaConvolution {
  const bf16* in[4];  // [128] inputs of the last four positions, oldest first; null before position 0
  const float* taps;  // [4, 128]
  bool normalise;     // divide by the norm over the channels
  float factor;       // of the normalised
  bf16* out;          // [128]
};

// One head of one open chunk: rows of earlier steps and of this one.
struct KdaChunk {
  alignas(64) float k[kChunk][kKdaHead];
  alignas(64) float G[kChunk][kKdaHead];  // running sum of the log decay
  alignas(64) float w[kChunk][kKdaHead];
  alignas(64) float u[kChunk][kKdaHead];
  alignas(64) float T[kChunk][kChunk];
};
// The chunk's rows [first, end), new in this step; pointers stand at row `first` of the head. Of rows before
// `first` the chunk holds all but u.
struct KdaRows {
  int first, end;
  const bf16 *q = nullptr, *k = nullptr, *v = nullptr;  // [rows, 128] by `stride`
  const float* g = nullptr;                             // likewise
  const float* beta = nullptr;                          // [rows] by `beta_stride`
  float* out = nullptr;                                 // like q
  int64_t stride = 0, beta_stride = 0;
};

// --- attn_res_mix, lane_reduce

// Σ v² and Σ v·score over the channels of one source.
struct MixSums {
  float squares, weighted;
};
struct MixSources {
  const bf16* const* source;  // [count] → [hidden]
  const float* weight;        // [count]; unused when count is 1
  int count;
  const float* norm;  // [hidden]
  float eps;
  float* mix;  // [hidden] workspace
  bf16* out;   // [hidden]
};
struct LaneSum {
  const float* partial;  // lane 0; the others by `stride`
  int64_t stride;
  int lanes;
  bool restart;
  bf16* stream;
};

// --- sample: counts are multiples of 16

struct SequenceKernels {
  int index_query_floats;  // floats of one prepared head vector
  void (*prepare_index_query)(const bf16* query, float* prepared);
  void (*score_index_page)(IndexKeyFormat format, const uint8_t* page, const IndexScores& scores);

  int query_floats;  // floats of one prepared query
  void (*prepare_query)(const bf16* query, float* prepared);
  void (*decode_latent)(LatentFormat format, const uint8_t* record, float scale, bf16* out);
  void (*add_tile)(const AttendWalk& walk, const AttendTile& tile);

  void (*kda_convolve)(const KdaConvolution& c);
  void (*kda_rows)(KdaChunk& chunk, const KdaRows& rows,
                   const float* state);                     // state [128 (key), 128 (value)]
  void (*kda_commit)(const KdaChunk& chunk, float* state);  // a whole chunk's rows

  // Channels in multiples of 16.
  MixSums (*mix_sums)(const bf16* source, const float* score, int hidden);
  void (*mix_and_norm)(const MixSources& sources, int hidden);
  void (*sum_lanes)(const LaneSum& sum, int channels);

  float (*largest)(const float* z, int64_t count);  // std::max_element's: NaN only when z[0] is
  void (*add_exp)(const float* z, int64_t count, float top, float* sum);  // sum[i mod 16] += e^(z[i] − top)
  // z ← (z − norm) + Gumbel noise from words that are uniform
  void (*add_gumbel)(const uint32_t* words, int64_t count, float norm, float* z);
};

namespace avx2 {
extern const SequenceKernels sequence_kernels;
}
namespace avx512 {
extern const SequenceKernels sequence_kernels;
}
#ifdef PERIGEE_TEST_HOOKS
namespace avx512_emulated {
extern const SequenceKernels sequence_kernels;
}
#endif

}  // namespace perigee::cpu
