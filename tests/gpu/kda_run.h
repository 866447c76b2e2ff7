// Sequences that take kda_chunk in steps of any kind, on either backend, and what must be equal afterwards.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gpu/both_devices.h"
#include "ops/kda_inputs.h"

namespace perigee::test {

inline KdaConfig kda_config(int heads) {
  KdaConfig config;
  config.num_heads = heads;
  return config;
}

// One sequence on one backend: its cache, and the output of every row so far.
struct SequenceRun {
  const KdaInputs* x;
  SequenceCache cache;
  std::vector<float> out;  // [tokens, D]

  explicit SequenceRun(const KdaInputs& inputs)
      : x(&inputs),
        cache(CacheShape{.attention_has_index = {}, .kda_layers = 1, .kda_heads = inputs.heads},
              page_locked_memory(), 1024),
        out(inputs.q.size(), NAN) {
    const KdaSlot slot = cache.slot(0);  // a new sequence's ring holds nothing that may be read
    const int64_t kept = int64_t{KdaSlot::kRing} * D();
    std::memset(slot.conv_input, 0xFF, 3 * kept * sizeof(bf16));
    std::memset(slot.k, 0xFF, kept * sizeof(bf16));
    std::memset(slot.G, 0xFF, kept * sizeof(float));
    std::memset(slot.w, 0xFF, kept * sizeof(float));
    std::memset(slot.T, 0xFF, kept / KdaInputs::kHead * kChunk * sizeof(float));
  }
  int D() const { return x->heads * KdaInputs::kHead; }
};

// The rows of one sequence in a step.
struct Part {
  SequenceRun* run;
  const KdaInputs* x;  // whose rows: the run's, or a draft's
  int start, rows, accepted;
};

// Runs kda_chunk over the parts as one step.
inline void step(Backend& backend, const std::vector<Part>& parts) {
  const int heads = parts[0].run->x->heads, D = heads * KdaInputs::kHead;
  std::vector<SequenceRows> sequences;
  std::vector<KdaSlot> slots;
  Shared<bf16> conv_input, q, k, v;
  Shared<float> g, beta;
  int64_t rows = 0;
  for (const Part& p : parts) rows += p.rows;
  conv_input.reserve(3 * rows * D), beta.reserve(rows * heads);
  q.reserve(rows * D), k.reserve(rows * D), v.reserve(rows * D), g.reserve(rows * D);
  for (const Part& p : parts) {
    sequences.push_back({.first_row = static_cast<int>(beta.size()) / heads,
                         .rows = p.rows,
                         .start = p.start,
                         .accepted = p.accepted});
    slots.push_back(p.run->cache.slot(0));
    const auto append = [&](auto& to, const auto& from, int64_t width) {
      to.insert(to.end(), from.begin() + p.start * width, from.begin() + (p.start + p.rows) * width);
    };
    append(conv_input, p.x->conv_input, 3 * D);
    append(q, p.x->q, D), append(k, p.x->k, D), append(v, p.x->v, D), append(g, p.x->g, D);
    append(beta, p.x->beta, heads);
  }
  Shared<float> out = poisoned<float>(static_cast<int64_t>(q.size()));
  const GpuStep step(sequences, slots);
  const bool on_gpu = &backend == &gpu();
  if (on_gpu) step.begin();
  const KdaConfig config = kda_config(heads);
  backend.kda_chunk({.config = config,
                     .sequences = step.sequences(),
                     .slots = step.slots(),
                     .conv_input = conv_input.data(),
                     .q = q.data(),
                     .k = k.data(),
                     .v = v.data(),
                     .g = g.data(),
                     .beta = beta.data(),
                     .out = out.data()});
  if (on_gpu) gpu().memory().wait();
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& p = parts[i];
    std::copy_n(out.begin() + int64_t{sequences[i].first_row} * D, int64_t{p.rows} * D,
                p.run->out.begin() + int64_t{p.start} * D);
    p.run->cache.set_length(p.start + p.rows);
  }
}

inline void step(Backend& backend, SequenceRun& run, int start, int rows, int accepted) {
  step(backend, {{.run = &run, .x = run.x, .start = start, .rows = rows, .accepted = accepted}});
}
inline void step(Backend& backend, SequenceRun& run, int start, int rows) {
  step(backend, run, start, rows, start + rows);
}

inline std::vector<float> stored_state(SequenceRun& run) {
  const KdaSlot slot = run.cache.slot(0);
  std::vector<float> S;
  for (int h = 0; h < run.x->heads; ++h) {
    const float* head = slot.state + h * slot.state_stride;
    S.insert(S.end(), head, head + KdaInputs::kHead * KdaInputs::kHead);
  }
  return S;
}

template <typename T>
bool same_bits(const T* a, const T* b, int64_t count) {
  return std::memcmp(a, b, static_cast<size_t>(count) * sizeof(T)) == 0;
}

// Outputs up to `length`, the stored state, and the rows and conv inputs that the slots must hold.
inline void expect_same(SequenceRun& got, SequenceRun& want, int length, const std::string& what) {
  const int heads = want.x->heads;
  const int64_t D = want.D();
  EXPECT_TRUE(same_bits(got.out.data(), want.out.data(), length * D)) << what << ": outputs";
  const KdaSlot a = got.cache.slot(0), b = want.cache.slot(0);
  ASSERT_EQ(*a.base, *b.base) << what;
  EXPECT_EQ(stored_state(got), stored_state(want)) << what << ": state at " << *a.base;
  for (int64_t p = *a.base; p < length; ++p) {
    const int64_t at = p % KdaSlot::kRing;
    ASSERT_TRUE(same_bits(a.k + at * D, b.k + at * D, D)) << what << ": k of position " << p;
    ASSERT_TRUE(same_bits(a.G + at * D, b.G + at * D, D)) << what << ": G of position " << p;
    ASSERT_TRUE(same_bits(a.w + at * D, b.w + at * D, D)) << what << ": w of position " << p;
    const int64_t T = at * heads * kChunk;
    ASSERT_TRUE(same_bits(a.T + T, b.T + T, heads * kChunk)) << what << ": T of position " << p;
  }
  for (int64_t p = std::max<int64_t>(0, *a.base - 3); p < length; ++p) {
    const int64_t at = p % KdaSlot::kRing * 3 * D;
    ASSERT_TRUE(same_bits(a.conv_input + at, b.conv_input + at, 3 * D)) << what << ": conv input of " << p;
  }
}

}  // namespace perigee::test
