#include "ops/cpu/fast/sequence_kernels.h"

#include "ops/cpu/fast/sequence_functions.h"

namespace perigee::cpu::PERIGEE_ISA {

const SequenceKernels sequence_kernels{.index_query_floats = kIndexQueryFloats,
                                       .prepare_index_query = prepare_index_query,
                                       .score_index_page = score_index_page,
                                       .query_floats = kQueryFloats,
                                       .prepare_query = prepare_query,
                                       .decode_latent = decode_latent,
                                       .add_tile = add_tile,
                                       .kda_convolve = kda_convolve,
                                       .kda_rows = kda_rows,
                                       .kda_commit = kda_commit,
                                       .mix_sums = mix_sums,
                                       .mix_and_norm = mix_and_norm,
                                       .sum_lanes = sum_lanes,
                                       .largest = largest,
                                       .add_exp = add_exp,
                                       .add_gumbel = add_gumbel};

}  // namespace perigee::cpu::PERIGEE_ISA
