// kda_conv_norm_gate and kda_chunk: heads are tasks; a task walks its sequence chunk by chunk, all new rows
// of a chunk together.
#include <algorithm>
#include <cstring>

#include "ops/cpu/fast/backend.h"
#include "ops/cpu/fast/scratch.h"
#include "ops/cpu/fast/sequence_kernels.h"

namespace perigee::cpu {

namespace {

int64_t ring(int64_t position) { return position % KdaSlot::kRing; }

constexpr int kConvRows = 64;  // rows of a convolution task, for which the taps are transposed once

struct ConvTask {
  int sequence, first, rows;
};

}  // namespace

void FastBackend::kda_conv_norm_gate(const KdaConvArgs& a) {
  const int heads = a.config.num_heads;
  const int64_t D = int64_t{heads} * kKdaHead;
  const float* taps[3] = {a.weights.conv_q, a.weights.conv_k, a.weights.conv_v};
  bf16* outs[3] = {a.q, a.k, a.v};
  std::vector<ConvTask> tasks;
  for (size_t s = 0; s < a.sequences.size(); ++s) {
    for (int i = 0; i < a.sequences[s].rows; i += kConvRows)
      tasks.push_back({static_cast<int>(s), i, std::min(kConvRows, a.sequences[s].rows - i)});
  }
  pool_.run(static_cast<int64_t>(tasks.size()) * heads, [&](int64_t t) {
    const ConvTask& task = tasks[t / heads];
    const int64_t channel = t % heads * kKdaHead;
    const SequenceRows& seq = a.sequences[task.sequence];
    const KdaSlot& slot = a.slots[task.sequence];
    for (int part = 0; part < 3; ++part) {
      alignas(64) float by_tap[4 * kKdaHead];
      for (int c = 0; c < kKdaHead; ++c) {
        for (int tap = 0; tap < 4; ++tap) by_tap[tap * kKdaHead + c] = taps[part][(channel + c) * 4 + tap];
      }
      for (int i = task.first; i < task.first + task.rows; ++i) {
        const int64_t row = seq.first_row + i, position = seq.start + i;
        KdaConvolution c{.taps = by_tap,
                         .normalise = part < 2,
                         .factor = part == 0 ? 0.08838834764831845f : 1.0f,  // 128^-½
                         .out = outs[part] + row * D + channel};
        for (int tap = 0; tap < 4; ++tap) {  // tap 3 is the current position
          const int64_t back = 3 - tap, p = position - back;
          const bf16* in =
              back <= i ? a.conv_input + (row - back) * 3 * D : slot.conv_input + ring(p) * 3 * D;
          c.in[tap] = p < 0 ? nullptr : in + part * D + channel;
        }
        kernels_.sequence->kda_convolve(c);
      }
    }
  });
}

namespace {

// One head of one sequence over the step's rows.
class KdaWalk {
 public:
  KdaWalk(const SequenceKernels& kernels, const KdaChunkArgs& args, int sequence, int head)
      : kernels_(kernels),
        a_(args),
        seq_(args.sequences[sequence]),
        slot_(args.slots[sequence]),
        head_(head),
        heads_(args.config.num_heads),
        D_(int64_t{heads_} * kKdaHead) {}

  void run() {
    Arena& arena = thread_arena();
    const Arena::Scope scope(arena);
    KdaChunk& chunk = *arena.take<KdaChunk>(1);
    constexpr int64_t kState = kKdaHead * kKdaHead;
    float* state = slot_.state + head_ * kState;
    bool stored = true;  // `state` is the slot's own
    const int64_t base = *slot_.base, end = seq_.start + seq_.rows;
    for (int64_t start = base; start < end; start += kChunk) {
      const int rows = static_cast<int>(std::min<int64_t>(kChunk, end - start));
      const int kept = static_cast<int>(std::clamp<int64_t>(seq_.start - start, 0, rows));
      for (int i = 0; i < kept; ++i) restore(chunk, i, start + i);
      add_rows(chunk, start, kept, rows, state);
      if (rows < kChunk) break;
      if (start + kChunk > seq_.accepted && stored) {
        float* own = arena.take<float>(kState);
        std::memcpy(own, state, kState * sizeof(float));
        state = own;
        stored = false;
      }
      kernels_.kda_commit(chunk, state);
    }
  }

 private:
  // A row of an earlier step, but for u.
  void restore(KdaChunk& chunk, int i, int64_t position) const {
    const int64_t at = ring(position) * D_ + head_ * kKdaHead;
    for (int d = 0; d < kKdaHead; ++d) chunk.k[i][d] = bf16_to_float(slot_.k[at + d]);
    std::memcpy(chunk.G[i], slot_.G + at, sizeof chunk.G[i]);
    std::memcpy(chunk.w[i], slot_.w + at, sizeof chunk.w[i]);
    std::memcpy(chunk.T[i], T(position), sizeof chunk.T[i]);
  }

  void add_rows(KdaChunk& chunk, int64_t start, int first, int end, const float* state) const {
    if (first == end) {  // nothing new, but the u of the rows kept
      kernels_.kda_rows(chunk, {.first = first, .end = end}, state);
      return;
    }
    const int64_t row = seq_.first_row + (start + first - seq_.start);
    const int64_t at = row * D_ + head_ * kKdaHead;
    kernels_.kda_rows(chunk,
                      {.first = first,
                       .end = end,
                       .q = a_.q + at,
                       .k = a_.k + at,
                       .v = a_.v + at,
                       .g = a_.g + at,
                       .beta = a_.beta + row * heads_ + head_,
                       .out = a_.out + at,
                       .stride = D_,
                       .beta_stride = heads_},
                      state);
    // Rows of chunks whose state is stored after this step are needed no more.
    const int64_t keep_from = std::max(*slot_.base, seq_.accepted / kChunk * kChunk);
    for (int i = first; i < end; ++i) {
      const int64_t position = start + i;
      if (position < keep_from) continue;
      const int64_t kept = ring(position) * D_ + head_ * kKdaHead;
      std::memcpy(slot_.k + kept, a_.k + at + (i - first) * D_, kKdaHead * sizeof(bf16));
      std::memcpy(slot_.G + kept, chunk.G[i], sizeof chunk.G[i]);
      std::memcpy(slot_.w + kept, chunk.w[i], sizeof chunk.w[i]);
      std::memcpy(T(position), chunk.T[i], sizeof chunk.T[i]);
    }
  }

  float* T(int64_t position) const { return slot_.T + (ring(position) * heads_ + head_) * kChunk; }

  const SequenceKernels& kernels_;
  const KdaChunkArgs& a_;
  const SequenceRows& seq_;
  const KdaSlot& slot_;
  const int head_, heads_;
  const int64_t D_;
};

}  // namespace

void FastBackend::kda_chunk(const KdaChunkArgs& a) {
  if (rule_broken(Rule::kPosition) || rule_broken(Rule::kStoredForm)) return PlainBackend::kda_chunk(a);
  const int heads = a.config.num_heads;
  pool_.run(static_cast<int64_t>(a.sequences.size()) * heads, [&](int64_t task) {
    KdaWalk(*kernels_.sequence, a, static_cast<int>(task / heads), static_cast<int>(task % heads)).run();
  });
  keep_conv_inputs(a);
}

}  // namespace perigee::cpu
