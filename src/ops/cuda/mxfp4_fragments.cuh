// MXFP4 weights from memory straight into fragments of the matrix instructions, as exact bf16.
//
// A warp takes K in chunks of 128 values, four blocks: thread t of a quad reads block t of its rows, 16
// bytes, so that a row's chunk is read in one piece. An instruction takes 16 values of a chunk, four from
// every block; this order of K is the same for every number of rows, and a product is one chain over it.
#pragma once

#include "formats/mxfp4.h"
#include "ops/cuda/mma.cuh"
#include "ops/expert_addresses.h"

namespace perigee::cuda {

constexpr int kChunk = 128, kChunkBlocks = kChunk / kMxfp4Block, kChunkWords = 4;

// Where value k of a chunk stands in the order in which the instructions take the chunk.
constexpr __host__ __device__ int place_in_chunk(int k) {
  const int thread = k / 32, word = k / 8 % 4, i = k % 8;
  return (2 * word + i % 4 / 2) * kStepK + i % 2 * 8 + 2 * thread + i / 4;
}
constexpr __host__ __device__ int padded_to_chunks(int k) { return (k + kChunk - 1) / kChunk * kChunk; }

// One thread's part of a chunk: its block of the two rows of a fragment. A block that does not exist has
// scales of zero.
struct PackedBlocks {
  uint4 first, second;
  uint32_t first_scale, second_scale;
};

// The two rows of this thread's fragments, as pointers to block t of their first chunk.
struct PackedRows {
  const uint8_t *first, *second, *first_scale, *second_scale;
  int blocks;  // of a row, from block t on

  // Row `row_first` of one matrix and `row_second` of another or the same one, of `in` columns, which are
  // read from `first_column` (a multiple of 32) for `k` values. Rows beyond the last of `rows` are read as
  // the last.
  __device__ PackedRows(const ExpertMatrix& one, int row_first, const ExpertMatrix& two, int row_second,
                        int rows, int64_t in, int first_column, int k) {
    const int t = static_cast<int>(threadIdx.x) % 4;
    const auto block_of = [&](int row) { return (min(row, rows - 1) * in + first_column) / kMxfp4Block + t; };
    first = static_cast<const uint8_t*>(one.values) + block_of(row_first) * kBlockBytes;
    second = static_cast<const uint8_t*>(two.values) + block_of(row_second) * kBlockBytes;
    first_scale = one.scales + block_of(row_first);
    second_scale = two.scales + block_of(row_second);
    blocks = k / kMxfp4Block - t;
  }
  // Without kBoth the second row counts as zeros.
  template <bool kBoth = true>
  __device__ PackedBlocks load(int chunk) const {
    const int block = chunk * kChunkBlocks;
    PackedBlocks p;
    p.first_scale = p.second_scale = 0;
    if (block < blocks) {
      p.first = read_once(first + block * kBlockBytes);
      p.first_scale = __ldg(first_scale + block);
      if constexpr (kBoth) {
        p.second = read_once(second + block * kBlockBytes);
        p.second_scale = __ldg(second_scale + block);
      }
    }
    return p;
  }

 private:
  static constexpr int kBlockBytes = kMxfp4Block / 2;
  static __device__ uint4 read_once(const uint8_t* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
  }
};

__device__ inline uint32_t multiply_pair(uint32_t a, uint32_t b) {
  uint32_t y;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(0x80008000u));  // plus −0
  return y;
}

// The factors that turn the bits of e2m1, read as a bf16 (value · 2^-126), into values: 2^(code − 1), as far
// as bf16 goes, and the rest. Code 0 counts as zero.
struct BlockScale {
  uint32_t factor, rest;
  __device__ explicit BlockScale(uint32_t code) {
    const uint32_t one = code == 0 ? 0u : (min(code, 128u) + 126u) << 7;
    const uint32_t more = code <= 128u ? 127u << 7 : code == 0xFFu ? 0x7FC0u : (code - 1u) << 7;
    factor = one | one << 16, rest = more | more << 16;
  }
};

// The eight values of a word as pairs (0, 4), (1, 5), (2, 6), (3, 7). A product with 2^12 + 2^6 brings the
// sign of a code and its magnitude where a bf16 has them.
__device__ inline void decode_word(uint32_t word, uint32_t factor, uint32_t (&pairs)[4]) {
  constexpr uint32_t kLower = 0x000F000Fu, kUpper = 0x00F000F0u, kBits = 0x81C081C0u;
  const uint32_t upper = word >> 8;
  pairs[0] = (word & kLower) * 0x1040u & kBits;
  pairs[1] = (word & kUpper) * 0x104u & kBits;
  pairs[2] = (upper & kLower) * 0x1040u & kBits;
  pairs[3] = (upper & kUpper) * 0x104u & kBits;
#pragma unroll
  for (uint32_t& pair : pairs) pair = multiply_pair(pair, factor);
}

// The fragments of the two instructions that take word `j` of every thread. All scales of the warp are at
// most 2^1 unless `large`.
struct WordFragments {
  FragmentA a[2];
};
template <bool kBoth = true>
__device__ WordFragments decode(uint32_t first_word, uint32_t second_word, const BlockScale& first,
                                const BlockScale& second, bool large) {
  uint32_t one[4], two[4] = {};
  decode_word(first_word, first.factor, one);
  if constexpr (kBoth) decode_word(second_word, second.factor, two);
  if (large) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      one[i] = multiply_pair(one[i], first.rest);
      if constexpr (kBoth) two[i] = multiply_pair(two[i], second.rest);
    }
  }
  return {{{one[0], two[0], one[1], two[1]}, {one[2], two[2], one[3], two[3]}}};
}
__device__ inline bool any_large(const PackedBlocks& p) {
  return __any_sync(0xFFFFFFFFu, max(p.first_scale, p.second_scale) > 128u);
}
__device__ inline uint32_t word_of(const uint4& v, int j) {
  return j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w;
}

}  // namespace perigee::cuda
