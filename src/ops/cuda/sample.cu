// sample: one block a logit row. Every sum over the vocabulary is cut as its lanes are, strided over the
// block's threads and closed by a fixed tree, so it depends on the row alone.
#include "base/philox.h"
#include "ops/cuda/backend.h"
#include "ops/cuda/cuda_check.h"
#include "ops/cuda/lanes.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/elementary.h"

namespace perigee::cuda {
namespace {

constexpr int kThreads = 1024;

// Floats as integers of the same order; NaN counts as −∞, −0 as +0.
__device__ uint32_t ordered(float x) {
  if (x != x) x = -__uint_as_float(0x7F800000u);
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The tokens still in the draw: larger than `least`, or equal to it with an id up to `last`.
struct Kept {
  uint32_t least = 0;
  int last = 0x7FFFFFFF;
  __device__ bool operator()(uint32_t value, int id) const {
    return value > least || (value == least && id <= last);
  }
};

// A row's logits, or, kScaled, those divided by the temperature.
template <bool kScaled>
struct Row {
  const float* logits;
  float temperature;
  int vocab;
  float* of_warp;    // [warps] shared
  int* int_of_warp;  // [warps] shared

  __device__ float z(int v) const { return kScaled ? logits[v] / temperature : logits[v]; }

  __device__ float largest() const {
    float top = -__uint_as_float(0x7F800000u);
#pragma unroll 8
    for (int v = threadIdx.x; v < vocab; v += kThreads) top = fmaxf(top, z(v));
    top = warp_max(top);
    __syncthreads();
    if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = top;
    __syncthreads();
    for (int w = 0; w < kThreads / kWarp; ++w) top = fmaxf(top, of_warp[w]);
    return top;
  }

  // Σ exp(z − top) over kept v in [begin, end).
  template <typename Keep>
  __device__ float sum_exp(int begin, int end, float top, const Keep& keep) const {
    float sum = 0.0f;
#pragma unroll 8
    for (int v = begin + static_cast<int>(threadIdx.x); v < end; v += kThreads) {
      if (keep(ordered(z(v)), v)) sum += exp(z(v) - top);
    }
    __syncthreads();
    return block_sum(sum, of_warp);
  }

  template <typename Keep>
  __device__ float log_sum_exp(float top, int lanes, const Keep& keep) const {
    const int block = (vocab + lanes - 1) / lanes;
    float sums[kMaxLanes];
    for (int l = 0; l < lanes; ++l) sums[l] = sum_exp(l * block, min(vocab, (l + 1) * block), top, keep);
    return top + log(reduce_lanes(sums, 1, lanes));
  }

  template <typename Condition>
  __device__ int count(const Condition& condition) const {
    int n = 0;
#pragma unroll 8
    for (int v = threadIdx.x; v < vocab; v += kThreads) n += condition(ordered(z(v)), v);
    for (int stride = kWarp / 2; stride > 0; stride /= 2) n += __shfl_xor_sync(kAllLanes, n, stride);
    __syncthreads();
    if (threadIdx.x % kWarp == 0) int_of_warp[threadIdx.x / kWarp] = n;
    __syncthreads();
    int total = 0;
    for (int w = 0; w < kThreads / kWarp; ++w) total += int_of_warp[w];
    return total;
  }

  // The id of the n-th token (from one, in ascending id) whose value is `value`.
  __device__ int nth_equal(uint32_t value, int n) const {
    int low = 0, high = vocab - 1;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (count([&](uint32_t o, int v) { return o == value && v <= middle; }) >= n) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

  // Top-k: the k largest, lower ids first among equals.
  __device__ Kept keep_k(int k) const {
    uint32_t least = 0;
    for (uint32_t bit = 0x80000000u; bit; bit >>= 1) {
      const uint32_t tried = least | bit;
      if (count([&](uint32_t o, int) { return o >= tried; }) >= k) least = tried;
    }
    const int above = count([&](uint32_t o, int) { return o > least; });
    return {least, nth_equal(least, k - above)};
  }

  // Top-p: in descending order (lower ids first among equals) as many as it takes to reach p of the kept.
  __device__ Kept keep_p(float p, float top, const Kept& kept) const {
    const float wanted = p * sum_exp(0, vocab, top, kept);
    uint32_t least = 0;
    for (uint32_t bit = 0x80000000u; bit; bit >>= 1) {
      const uint32_t tried = least | bit;
      const float reached =
          sum_exp(0, vocab, top, [&](uint32_t o, int v) { return o >= tried && kept(o, v); });
      if (reached >= wanted) least = tried;
    }
    if (least < kept.least) return kept;  // rounding: not even all reach it
    const float above = sum_exp(0, vocab, top, [&](uint32_t o, int v) { return o > least && kept(o, v); });
    const int equal = count([&](uint32_t o, int v) { return o == least && kept(o, v); });
    const float value = __uint_as_float(least & 0x80000000u ? least & 0x7FFFFFFFu : ~least);
    const float each = exp(value - top);
    int needed = 1;
    while (needed < equal && __fmaf_rn(static_cast<float>(needed), each, above) < wanted) ++needed;
    return {least, nth_equal(least, needed)};
  }
};

// The larger value, the lower id among equals.
struct Best {
  float value;
  int id;
  __device__ void take(float v, int i) {
    if (v > value || (v == value && i < id)) value = v, id = i;
  }
};

template <bool kScaled>
__device__ Best block_best(Best best, const Row<kScaled>& row) {
  for (int stride = kWarp / 2; stride > 0; stride /= 2) {
    const float v = __shfl_xor_sync(kAllLanes, best.value, stride);
    const int i = __shfl_xor_sync(kAllLanes, best.id, stride);
    best.take(v, i);
  }
  __syncthreads();
  if (threadIdx.x % kWarp == 0) {
    row.of_warp[threadIdx.x / kWarp] = best.value;
    row.int_of_warp[threadIdx.x / kWarp] = best.id;
  }
  __syncthreads();
  for (int w = 0; w < kThreads / kWarp; ++w) best.take(row.of_warp[w], row.int_of_warp[w]);
  return best;
}

// rows and drawn lie on the host: each is read or written once. tokens: for the next step's embed.
__global__ void __launch_bounds__(kThreads)
    sample_kernel(const float* logits, const SampleRow* rows, Drawn* drawn, int32_t* tokens, int vocab,
                  int lanes) {
  __shared__ float of_warp[kThreads / kWarp];
  __shared__ int int_of_warp[kThreads / kWarp];
  __shared__ alignas(SampleRow) std::byte of_row[sizeof(SampleRow)];
  SampleRow& in = *reinterpret_cast<SampleRow*>(of_row);
  if (threadIdx.x == 0) in = rows[blockIdx.x];
  __syncthreads();
  const SampleParams& p = in.params;
  const Row<false> raw{logits + int64_t{blockIdx.x} * vocab, 1.0f, vocab, of_warp, int_of_warp};
  const float* source = in.processed ? in.processed : raw.logits;
  const auto all = [](uint32_t, int) { return true; };
  const float raw_top = raw.largest();
  const float log_norm = raw.log_sum_exp(raw_top, lanes, all);

  Best best{-__uint_as_float(0x7F800000u), 0x7FFFFFFF};
  if (p.temperature < kGreedyTemperature) {
#pragma unroll 8
    for (int v = threadIdx.x; v < vocab; v += kThreads) best.take(source[v], v);
  } else {
    const Row<true> row{source, p.temperature, vocab, of_warp, int_of_warp};
    const float top = row.largest();
    Kept kept;
    if (p.top_k > 0 && p.top_k < vocab) kept = row.keep_k(p.top_k);
    if (p.top_p < 1.0f) kept = row.keep_p(p.top_p, top, kept);
    const float norm = row.log_sum_exp(top, lanes, kept);
    for (int v = threadIdx.x; v < vocab; v += kThreads) {
      const float z = row.z(v);
      if (!kept(ordered(z), v)) continue;
      const Philox4 words = random_words(p.seed, kSampleStream, static_cast<uint64_t>(in.position),
                                         static_cast<uint32_t>(v / 4));
      best.take((z - norm) - log(-log(uniform_open(words[v % 4]))), v);
    }
  }
  best = block_best(best, raw);
  if (threadIdx.x == 0) {
    const int32_t token = best.id == 0x7FFFFFFF ? 0 : best.id;
    drawn[blockIdx.x] = {token, raw.logits[token], log_norm};
    tokens[blockIdx.x] = token;
  }
}

}  // namespace

void CudaBackend::sample(const SampleArgs& a) {
  if (a.count == 0) return;
  const int64_t bytes = a.count * static_cast<int64_t>(sizeof(int32_t));
  if (drawn_.bytes() < bytes) drawn_ = MemoryBlock(memory_, 2 * bytes);
  sample_kernel<<<static_cast<unsigned>(a.count), kThreads, 0, stream()>>>(
      a.logits, a.rows, a.drawn, drawn_.as<int32_t>(), a.vocab, a.lanes);
  cuda_check(cudaGetLastError(), "launching sample");
}

}  // namespace perigee::cuda
