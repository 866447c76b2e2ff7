// The functions that the table of sequence_kernels.h points at, defined a file a block kind.
#pragma once

#include "ops/cpu/fast/sequence_kernels.h"

namespace perigee::cpu::PERIGEE_ISA {

extern const int kIndexQueryFloats;
void prepare_index_query(const bf16* query, float* prepared);
void score_index_page(IndexKeyFormat format, const uint8_t* page, const IndexScores& scores);

extern const int kQueryFloats;
void prepare_query(const bf16* query, float* prepared);
void decode_latent(LatentFormat format, const uint8_t* record, float scale, bf16* out);
void add_tile(const AttendWalk& walk, const AttendTile& tile);

void kda_convolve(const KdaConvolution& c);
void kda_rows(KdaChunk& chunk, const KdaRows& rows, const float* state);
void kda_commit(const KdaChunk& chunk, float* state);

MixSums mix_sums(const bf16* source, const float* score, int hidden);
void mix_and_norm(const MixSources& sources, int hidden);
void sum_lanes(const LaneSum& sum, int channels);

float largest(const float* z, int64_t count);
void add_exp(const float* z, int64_t count, float top, float* sum);
void add_gumbel(const uint32_t* words, int64_t count, float norm, float* z);

}  // namespace perigee::cpu::PERIGEE_ISA
