// The KDA stages at K3.1's TP8 shape, 12 heads: prefill of one sequence of 8,192 tokens, and decode of 64
// sequences, their places in the open chunk spread evenly or all at its end (where every one stores its
// state).
#include <fmt/format.h>

#include "bench/gpu/harness.h"

namespace perigee::cuda::bench {

namespace {

constexpr int kHeads = 12, kHead = 128;
constexpr int64_t kD = kHeads * kHead, kState = int64_t{kHeads} * kHead * kHead;

// One step of `sequences` sequences over `sets` layers of their own, so that a graph over the layers reads
// more than L2 holds.
class KdaStep {
 public:
  KdaStep(int sets, std::vector<SequenceRows> sequences)
      : sequences_(std::move(sequences)),
        rows_(sequences_.back().first_row + sequences_.back().rows),
        tokens_(rows_),
        base_(sets * sequences_.size()),
        state_(random_floats(of_slots(kState), 0.1f)),
        ring_k_(random_bf16(of_slots(KdaSlot::kRing * kD), 0.088f)),
        ring_conv_(random_bf16(of_slots(KdaSlot::kRing * 3 * kD))),
        ring_G_(random_floats(of_slots(KdaSlot::kRing * kD), 1.0f, -8.0f)),
        ring_w_(random_floats(of_slots(KdaSlot::kRing * kD), 0.3f)),
        ring_T_(random_floats(of_slots(KdaSlot::kRing * kHeads * kChunk), 0.1f)),
        conv_input_(random_bf16(sets * rows_ * 3 * kD)),
        q_(random_bf16(sets * rows_ * kD, 0.0078f)),
        k_(random_bf16(sets * rows_ * kD, 0.088f)),
        v_(random_bf16(sets * rows_ * kD)),
        g_(random_floats(sets * rows_ * kD, 0.15f, -1.0f)),
        beta_(random_floats(sets * rows_ * kHeads, 0.1f, 0.5f)),
        taps_(random_floats(3 * kD * 4, 0.3f)),
        out_(static_cast<size_t>(sets * rows_ * kD)) {
    config_.num_heads = kHeads;
    weights_.conv_q = taps_.data(), weights_.conv_k = taps_.data() + kD * 4,
    weights_.conv_v = taps_.data() + 2 * kD * 4;
    int64_t n = 0;
    for (int set = 0; set < sets; ++set) {
      std::vector<KdaSlot>& layer = slots_.emplace_back();
      for (const SequenceRows& s : sequences_) {
        base_[n] = s.start / kChunk * kChunk;
        layer.push_back({.state = state_.data() + n * kState,
                         .state_stride = kHead * kHead,
                         .stored = state_.data() + n * kState,
                         .stored_stride = kHead * kHead,
                         .base = &base_[n],
                         .conv_input = ring_conv_.data() + n * KdaSlot::kRing * 3 * kD,
                         .k = ring_k_.data() + n * KdaSlot::kRing * kD,
                         .G = ring_G_.data() + n * KdaSlot::kRing * kD,
                         .w = ring_w_.data() + n * KdaSlot::kRing * kD,
                         .T = ring_T_.data() + n * KdaSlot::kRing * kHeads * kChunk});
        ++n;
      }
    }
  }

  void begin(Bench& bench) const {
    bench.backend().begin_step({.tokens = tokens_,
                                .logit_rows = {},
                                .sequences = sequences_,
                                .slots = slots_,
                                .pages = {},
                                .page_count = {}});
  }
  void conv(Bench& bench, int set) {
    bench.backend().kda_conv_norm_gate({.weights = weights_,
                                        .config = config_,
                                        .sequences = sequences_,
                                        .slots = slots_[set],
                                        .conv_input = conv_input_.data() + set * rows_ * 3 * kD,
                                        .q = q_.data() + set * rows_ * kD,
                                        .k = k_.data() + set * rows_ * kD,
                                        .v = v_.data() + set * rows_ * kD});
  }
  void chunk(Bench& bench, int set) {
    bench.backend().kda_chunk({.config = config_,
                               .sequences = sequences_,
                               .slots = slots_[set],
                               .conv_input = conv_input_.data() + set * rows_ * 3 * kD,
                               .q = q_.data() + set * rows_ * kD,
                               .k = k_.data() + set * rows_ * kD,
                               .v = v_.data() + set * rows_ * kD,
                               .g = g_.data() + set * rows_ * kD,
                               .beta = beta_.data() + set * rows_ * kHeads,
                               .out = out_.data() + set * rows_ * kD});
  }
  int sets() const { return static_cast<int>(slots_.size()); }

  // Bytes that kda_chunk must move: states, rows of the open chunk, and the step's own rows.
  double chunk_bytes() const {
    constexpr double kRow = kD * (2 + 4 + 4) + kHeads * kChunk * 4.0;  // k, G, w, T
    double bytes = static_cast<double>(rows_) * kD * (3 * 2 + 4 + 4);
    for (const SequenceRows& s : sequences_) {
      const int64_t end = s.start + s.rows, base = s.start / kChunk * kChunk;
      const bool stores = end / kChunk * kChunk > base;
      bytes += 4.0 * kState * (stores ? 2 : 1) + kRow * static_cast<double>(s.start - base) +
               kRow * static_cast<double>(end % kChunk);
    }
    return bytes;
  }
  double conv_bytes() const { return static_cast<double>(rows_) * 3 * kD * 2 * 2; }

 private:
  int64_t of_slots(int64_t count) const { return static_cast<int64_t>(base_.size()) * count; }

  std::vector<SequenceRows> sequences_;
  int64_t rows_;
  std::vector<int32_t> tokens_;
  std::vector<int64_t> base_;  // [sets, sequences]
  DeviceArray<float> state_;
  DeviceArray<bf16> ring_k_, ring_conv_;
  DeviceArray<float> ring_G_, ring_w_, ring_T_;
  DeviceArray<bf16> conv_input_, q_, k_, v_;
  DeviceArray<float> g_, beta_, taps_, out_;
  std::vector<std::vector<KdaSlot>> slots_;
  KdaConfig config_;
  KdaWeights weights_;
};

std::vector<SequenceRows> decoding(int count, bool lock_step) {
  std::vector<SequenceRows> rows;
  for (int s = 0; s < count; ++s) {
    const int64_t start = 64 + (lock_step ? kChunk - 1 : s % kChunk);
    rows.push_back({.first_row = s, .rows = 1, .start = start, .accepted = start + 1});
  }
  return rows;
}

}  // namespace

void kda(Bench& bench) {
  {
    KdaStep step(2, {{.first_row = 0, .rows = 8192, .start = 0, .accepted = 8192}});
    step.begin(bench);
    const double chunk = bench.microseconds(step.sets(), [&](int set) { step.chunk(bench, set); });
    bench.add({.name = "kda_prefill",
               .value = chunk,
               .limit = bench.limit_of_bytes(step.chunk_bytes()),
               .target = 250,
               .peer = "public H200",
               .peer_value = 596});
    const double conv = bench.microseconds(step.sets(), [&](int set) { step.conv(bench, set); });
    bench.add({.name = "kda_prefill_conv", .value = conv, .limit = bench.limit_of_bytes(step.conv_bytes())});
  }
  for (const int count : {1, 8, 64}) {
    for (const bool lock_step : {false, true}) {
      if (lock_step && count != 64) continue;
      KdaStep step(Bench::sets_beyond_l2(int64_t{count} * kState * 4), decoding(count, lock_step));
      step.begin(bench);
      const double us = bench.microseconds(step.sets(), [&](int set) {
        step.conv(bench, set);
        step.chunk(bench, set);
      });
      const bool goal =
          count == 64;  // the public figures are of the fused kernel, convolution and norm included
      bench.add({.name = fmt::format("kda_decode_{}{}", count, lock_step ? "_lock_step" : ""),
                 .value = us,
                 .limit = bench.limit_of_bytes(step.chunk_bytes() + step.conv_bytes()),
                 .target = goal ? 18.0 : 0,
                 .peer = "public H200",
                 .peer_value = goal         ? 31
                               : count == 8 ? 7.4
                                            : 7.2});
      const double chunk = bench.microseconds(step.sets(), [&](int set) { step.chunk(bench, set); });
      bench.add({.name = fmt::format("kda_decode_{}{}_chunk", count, lock_step ? "_lock_step" : ""),
                 .value = chunk,
                 .limit = bench.limit_of_bytes(step.chunk_bytes())});
    }
  }
}

}  // namespace perigee::cuda::bench
