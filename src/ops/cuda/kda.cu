// The element-wise parts of the KDA stages: convolution with SiLU and norm, norm and gate of the output. A
// warp has one head of one row, four neighbouring channels a thread; its sums are over four channels in
// order, then over the warp.
#include "ops/cuda/kda.h"

#include "ops/cuda/cuda_check.h"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/overlap.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/elementary.h"

namespace perigee::cuda {
namespace {

constexpr int kHead = 128, kPerThread = kHead / kWarp;
constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// Four bf16, one load.
struct alignas(8) Four {
  uint32_t pair[2];  // the earlier channel in the low half
  __device__ float operator[](int i) const {
    return __uint_as_float(i % 2 ? pair[i / 2] & 0xFFFF0000u : pair[i / 2] << 16);
  }
};

__device__ Four load(const bf16* from) { return *reinterpret_cast<const Four*>(from); }
__device__ void store(bf16* to, const float (&x)[kPerThread]) {
  *reinterpret_cast<Four*>(to) = {{bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3])}};
}

unsigned blocks(int64_t work, int64_t of_block) {
  return static_cast<unsigned>((work + of_block - 1) / of_block);
}

constexpr int kTaps = 4;

struct ConvParameters {
  RowsView rows;
  const SlotView* slots;
  const float *taps_q, *taps_k, *taps_v;  // each [D, 4]
  const bf16* conv_input;                 // [rows, 3, D]
  bf16 *q, *k, *v;                        // each [rows, D]
  int heads;
  int run;  // rows of a warp, which keeps taps and the inputs before
};

__global__ void __launch_bounds__(kThreads) kda_conv_kernel(const ConvParameters a) {
  begin_in_turn();
  const int unit = blockIdx.y * kWarps + threadIdx.x / kWarp;
  if (unit >= 3 * a.heads) return;
  const int part = unit / a.heads, head = unit % a.heads;
  const int64_t D = int64_t{a.heads} * kHead;
  const int column = head * kHead + threadIdx.x % kWarp * kPerThread;
  const float* taps = part == 0 ? a.taps_q : part == 1 ? a.taps_k : a.taps_v;
  bf16* out = part == 0 ? a.q : part == 1 ? a.k : a.v;
  float tap[kPerThread][kTaps];
#pragma unroll
  for (int n = 0; n < kPerThread; ++n) {
    const float4 four = *reinterpret_cast<const float4*>(taps + int64_t{column + n} * kTaps);
    tap[n][0] = four.x, tap[n][1] = four.y, tap[n][2] = four.z, tap[n][3] = four.w;
  }
  const auto input = [&](int64_t row) { return load(a.conv_input + (row * 3 + part) * D + column); };

  const int first = blockIdx.x * a.run, end = min(first + a.run, a.rows.rows);
  Four window[kTaps];  // the last is the row's own
  Four next = input(first);
  int index = 0, sequence_end = 0;  // of the row's sequence
  SequenceRows sequence{};
  for (int row = first; row < end; ++row) {
    const bool enters = row >= sequence_end;
    if (enters) {
      index = a.rows.sequence_of_row[row];
      sequence = a.rows.sequences[index];
      sequence_end = sequence.first_row + sequence.rows;
    }
    const int i = row - sequence.first_row;
    const Four own = next;
    if (row + 1 < end) next = input(row + 1);
    if (enters) {
#pragma unroll
      for (int back = 1; back < kTaps; ++back) {
        const int64_t position = sequence.start + i - back;
        Four before = {};
        if (back <= i) {
          before = input(row - back);
        } else if (position >= 0) {
          before = load(a.slots[index].conv_input + (position % KdaSlot::kRing * 3 + part) * D + column);
        }
        window[kTaps - 1 - back] = before;
      }
    } else {
#pragma unroll
      for (int n = 0; n + 1 < kTaps; ++n) window[n] = window[n + 1];
    }
    window[kTaps - 1] = own;

    float y[kPerThread], squares = 0.0f;
#pragma unroll
    for (int n = 0; n < kPerThread; ++n) {
      float sum = 0.0f;
#pragma unroll
      for (int t = 0; t < kTaps; ++t) sum = __fmaf_rn(tap[n][t], window[t][n], sum);
      y[n] = silu(sum);
      squares = __fmaf_rn(y[n], y[n], squares);
    }
    float scale = 1.0f;
    if (part < 2) scale = rsqrt(warp_sum(squares) + 1e-6f);
    if (part == 0) scale *= 0.08838834764831845f;  // 128^-½
#pragma unroll
    for (float& x : y) x *= scale;
    store(out + row * D + column, y);
  }
}

struct NormGateParameters {
  const float* o;     // [rows, heads, 128]
  const bf16* gate;   // likewise
  const float* norm;  // [128]
  bf16* y;
  float eps;
  int64_t units;  // rows · heads
};

__global__ void __launch_bounds__(kThreads) kda_norm_gate_kernel(const NormGateParameters a) {
  begin_in_turn();
  const int64_t unit = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (unit >= a.units) return;
  const int d = threadIdx.x % kWarp * kPerThread;
  const float4 four = *reinterpret_cast<const float4*>(a.o + unit * kHead + d);
  const float4 weight = *reinterpret_cast<const float4*>(a.norm + d);
  const Four gate = load(a.gate + unit * kHead + d);
  const float o[kPerThread] = {four.x, four.y, four.z, four.w};
  const float norm[kPerThread] = {weight.x, weight.y, weight.z, weight.w};
  float squares = 0.0f;
#pragma unroll
  for (int n = 0; n < kPerThread; ++n) squares = __fmaf_rn(o[n], o[n], squares);
  const float scale = rsqrt(warp_sum(squares) / kHead + a.eps);
  float y[kPerThread];
#pragma unroll
  for (int n = 0; n < kPerThread; ++n) y[n] = o[n] * scale * norm[n] * sigmoid(gate[n]);
  store(a.y + unit * kHead + d, y);
}

}  // namespace

void launch_kda_conv(const KdaConvArgs& args, const RowsView& rows, const SlotView* slots,
                     cudaStream_t stream) {
  constexpr int kManyRows = 1024;  // from here on there are warps enough for runs of rows
  const int heads = args.config.num_heads, run = rows.rows >= kManyRows ? 8 : 1;
  const ConvParameters p{.rows = rows,
                         .slots = slots,
                         .taps_q = args.weights.conv_q,
                         .taps_k = args.weights.conv_k,
                         .taps_v = args.weights.conv_v,
                         .conv_input = args.conv_input,
                         .q = args.q,
                         .k = args.k,
                         .v = args.v,
                         .heads = heads,
                         .run = run};
  const dim3 grid(blocks(rows.rows, run), blocks(3 * heads, kWarps));
  launch_overlapping(kda_conv_kernel, {.grid = grid, .threads = kThreads}, stream, p);
}

void launch_kda_norm_gate(const KdaOutputArgs& args, bf16* y, cudaStream_t stream) {
  const int64_t units = int64_t{args.rows} * args.config.num_heads;
  const NormGateParameters p{
      .o = args.o, .gate = args.gate, .norm = args.weights.o_norm, .y = y, .eps = args.eps, .units = units};
  launch_overlapping(kda_norm_gate_kernel, {.grid = dim3(blocks(units, kWarps)), .threads = kThreads}, stream,
                     p);
}

}  // namespace perigee::cuda
