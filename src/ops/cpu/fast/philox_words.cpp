#include "ops/cpu/fast/philox_words.h"

#include <immintrin.h>

namespace perigee::cpu {

namespace {

struct Product {
  __m256i low, high;
};

// 32 × 32 → 64 bits, lane by lane.
Product multiply(__m256i a, uint32_t constant) {
  const __m256i b = _mm256_set1_epi32(static_cast<int>(constant));
  const __m256i even = _mm256_mul_epu32(a, b), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), b);
  return {_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0b10101010),
          _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0b10101010)};
}

__m256i splat(uint64_t word) { return _mm256_set1_epi32(static_cast<int>(static_cast<uint32_t>(word))); }

}  // namespace

void philox_words(const PhiloxKey& key, int64_t blocks, uint32_t* words) {
  for (int64_t block = 0; block < blocks; block += 8) {
    __m256i c0 =
        _mm256_add_epi32(splat(static_cast<uint64_t>(block)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i c1 = splat(key.position), c2 = splat(key.position >> 32), c3 = splat(key.stream);
    uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const Product p0 = multiply(c0, 0xD2511F53u), p1 = multiply(c2, 0xCD9E8D57u);
      c0 = _mm256_xor_si256(_mm256_xor_si256(p1.high, c1), splat(k0));
      c2 = _mm256_xor_si256(_mm256_xor_si256(p0.high, c3), splat(k1));
      c1 = p1.low;
      c3 = p0.low;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    // Columns of four words → rows.
    const __m256i a = _mm256_unpacklo_epi32(c0, c1), b = _mm256_unpackhi_epi32(c0, c1);
    const __m256i c = _mm256_unpacklo_epi32(c2, c3), d = _mm256_unpackhi_epi32(c2, c3);
    const __m256i r0 = _mm256_unpacklo_epi64(a, c), r1 = _mm256_unpackhi_epi64(a, c);  // blocks 0 4, 1 5
    const __m256i r2 = _mm256_unpacklo_epi64(b, d), r3 = _mm256_unpackhi_epi64(b, d);  // blocks 2 6, 3 7
    auto* out = reinterpret_cast<__m256i*>(words + block * 4);
    _mm256_storeu_si256(out, _mm256_permute2x128_si256(r0, r1, 0x20));
    _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(r2, r3, 0x20));
    _mm256_storeu_si256(out + 2, _mm256_permute2x128_si256(r0, r1, 0x31));
    _mm256_storeu_si256(out + 3, _mm256_permute2x128_si256(r2, r3, 0x31));
  }
}

}  // namespace perigee::cpu
