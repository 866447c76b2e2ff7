#include "cli/ceilings.h"

#include <immintrin.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/error.h"

namespace perigee::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kLine = 64;              // bytes in one cache line
constexpr int64_t kBlock = 2 << 20;        // bytes in the smallest piece of a thread's share
constexpr int64_t kMinBuffer = 512 << 20;  // where the last level cache is smaller than a quarter of this

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int64_t last_level_cache() { return std::max<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), 1 << 20); }

// The sum of the 64-bit words of [data, data + bytes), read as `Streams` streams side by side: one stream
// alone does not keep enough lines under way on every CPU.
template <int Streams>
uint64_t read_streams(const std::byte* data, int64_t bytes) {
  const int64_t step = bytes / Streams;
  __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (int64_t at = 0; at < step; at += kLine) {
#pragma GCC unroll 8
    for (int s = 0; s < Streams; ++s) {
      const auto* line = reinterpret_cast<const __m256i*>(data + s * step + at);
      sum[0] = _mm256_add_epi64(sum[0], _mm256_load_si256(line));
      sum[1] = _mm256_add_epi64(sum[1], _mm256_load_si256(line + 1));
    }
  }
  alignas(32) uint64_t words[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(words), _mm256_add_epi64(sum[0], sum[1]));
  return words[0] + words[1] + words[2] + words[3];
}

uint64_t read_streams(int streams, const std::byte* data, int64_t bytes) {
  switch (streams) {
    case 1:
      return read_streams<1>(data, bytes);
    case 2:
      return read_streams<2>(data, bytes);
    case 4:
      return read_streams<4>(data, bytes);
    default:
      return read_streams<8>(data, bytes);
  }
}

// Chains of pair products. Each variant runs `rounds` rounds over enough accumulators to fill every unit's
// latency, and returns its floating point operations; `sink` keeps the compiler from dropping the work. The
// factors are small powers of two, so that sums neither overflow nor become subnormal.
constexpr float kX = 0.5f, kY = 0.0009765625f;

int64_t multiply_avx2(int64_t rounds, float* sink) {
  constexpr int kChains = 12, kLanes = 8;
  __m256 acc[kChains];
  const __m256 x0 = _mm256_set1_ps(kX), x1 = _mm256_set1_ps(-kX), y = _mm256_set1_ps(kY);
  for (int c = 0; c < kChains; ++c) acc[c] = _mm256_set1_ps(static_cast<float>(c));
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) acc[c] = _mm256_fmadd_ps(x1, y, acc[c]);
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) acc[c] = _mm256_fmadd_ps(x0, y, acc[c]);
  }
  for (int c = 0; c < kChains; ++c) *sink += _mm256_cvtss_f32(acc[c]);
  return rounds * kChains * kLanes * 4;
}

__attribute__((target("avx512f"))) int64_t multiply_avx512(int64_t rounds, float* sink) {
  constexpr int kChains = 24, kLanes = 16;
  __m512 acc[kChains];
  const __m512 x0 = _mm512_set1_ps(kX), x1 = _mm512_set1_ps(-kX), y = _mm512_set1_ps(kY);
  for (int c = 0; c < kChains; ++c) acc[c] = _mm512_set1_ps(static_cast<float>(c));
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) acc[c] = _mm512_fmadd_ps(x1, y, acc[c]);
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) acc[c] = _mm512_fmadd_ps(x0, y, acc[c]);
  }
  for (int c = 0; c < kChains; ++c) *sink += _mm512_cvtss_f32(acc[c]);
  return rounds * kChains * kLanes * 4;
}

__attribute__((target("avx512f,avx512bf16"))) int64_t multiply_avx512_bf16(int64_t rounds, float* sink) {
  constexpr int kChains = 24, kLanes = 16;
  __m512 acc[kChains];
  const __m512bh x = (__m512bh)_mm512_set1_epi32(0x3F00BF00);  // 0.5, −0.5
  const __m512bh y = (__m512bh)_mm512_set1_epi32(0x3A803A80);  // 2^-10 twice
  for (int c = 0; c < kChains; ++c) acc[c] = _mm512_set1_ps(static_cast<float>(c));
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) acc[c] = _mm512_dpbf16_ps(acc[c], x, y);
  }
  for (int c = 0; c < kChains; ++c) *sink += _mm512_cvtss_f32(acc[c]);
  return rounds * kChains * kLanes * 4;
}

struct Multiply {
  const char* instruction;
  int64_t (*run)(int64_t rounds, float* sink);
};

Multiply best_multiply() {
  if (__builtin_cpu_supports("avx512bf16")) return {"vdpbf16ps, 512 bits", multiply_avx512_bf16};
  if (__builtin_cpu_supports("avx512f")) return {"2 x vfmadd231ps, 512 bits", multiply_avx512};
  return {"2 x vfmadd231ps, 256 bits", multiply_avx2};
}

}  // namespace

CeilingMeter::CeilingMeter(int threads)
    : threads_(threads),
      pool_(threads),
      buffer_(static_cast<size_t>(std::max(kMinBuffer, 4 * last_level_cache()) / (kBlock * threads) * kBlock *
                                  threads)) {
  // Every thread touches a share first, so that it lies in the memory nearest to some thread.
  const int64_t share = static_cast<int64_t>(buffer_.size()) / threads_;
  pool_.run(threads_, [&](int64_t t) {
    auto* words = reinterpret_cast<uint64_t*>(buffer_.data() + t * share);
    std::fill_n(words, share / 8, uint64_t{1});
  });
}

Ceilings device_ceilings(Memory& memory) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  constexpr int kCopies = 10;
  const MemoryBlock from(memory, kBytes), to(memory, kBytes);
  Ceilings out{.dpbf16_flop_per_s = 790e12, .instruction = "an H200's bf16 product, not measured here"};
  for (int round = 0; round < 3; ++round) {
    uint8_t last;
    memory.download(&last, to.data(), 1);  // waits for what was enqueued before
    const auto start = Clock::now();
    for (int i = 0; i < kCopies; ++i) memory.copy(to.data(), from.data(), kBytes);
    memory.download(&last, to.data(), 1);
    out.read_bytes_per_s = std::max(out.read_bytes_per_s, 2.0 * kBytes * kCopies / seconds_since(start));
  }
  return out;
}

Ceilings higher(const Ceilings& a, const Ceilings& b) {
  return {.read_bytes_per_s = std::max(a.read_bytes_per_s, b.read_bytes_per_s),
          .dpbf16_flop_per_s = std::max(a.dpbf16_flop_per_s, b.dpbf16_flop_per_s),
          .instruction = a.instruction};
}

std::string CeilingMeter::dpbf16_instruction() { return best_multiply().instruction; }

// Bytes per second of all threads reading a share each.
double CeilingMeter::read_once(int streams, int64_t bytes) {
  const int64_t share = bytes / threads_ / kBlock * kBlock;
  std::atomic<uint64_t> sum = 0;
  const auto start = Clock::now();
  pool_.run(threads_, [&](int64_t t) { sum += read_streams(streams, buffer_.data() + t * share, share); });
  const double seconds = seconds_since(start);
  check(static_cast<int64_t>(sum) == share * threads_ / 8, "the words of the buffer add up to their number");
  return static_cast<double>(share * threads_) / seconds;
}

double CeilingMeter::multiply_once() {
  constexpr int64_t kRounds = 1 << 18;  // some milliseconds
  const Multiply multiply = best_multiply();
  std::atomic<int64_t> operations = 0;
  std::atomic<float> sink = 0;
  const auto start = Clock::now();
  pool_.run(threads_, [&](int64_t) {
    float mine = 0;
    operations += multiply.run(kRounds, &mine);
    sink = mine;
  });
  return static_cast<double>(operations) / seconds_since(start);
}

Ceilings CeilingMeter::measure() {
  Ceilings now{.instruction = dpbf16_instruction()};
  for (int round = 0; round < 3; ++round) {
    for (int streams : {1, 2, 4, 8}) {
      now.read_bytes_per_s =
          std::max(now.read_bytes_per_s, read_once(streams, static_cast<int64_t>(buffer_.size())));
    }
    for (int i = 0; i < 4; ++i) now.dpbf16_flop_per_s = std::max(now.dpbf16_flop_per_s, multiply_once());
  }
  best_ = higher(now, best_);
  return now;
}

void CeilingMeter::evict_caches() {
  const int64_t bytes = std::min<int64_t>(static_cast<int64_t>(buffer_.size()), 2 * last_level_cache());
  read_once(4, std::max(bytes, kBlock * threads_));
}

}  // namespace perigee::cli
