// The KDA stages on the device: against fp64 and the plain CPU backend, and by bits whatever the steps, the
// batch, the drafts.
#include <gtest/gtest.h>

#include "gpu/kda_run.h"

namespace perigee {
namespace {

using test::Doubles, test::expect_same, test::GpuStep, test::kda_config, test::KdaInputs, test::Matrix,
    test::Part, test::Random, test::same_bits, test::SequenceRun, test::Shared, test::step,
    test::stored_state;

constexpr int kHead = KdaInputs::kHead;
// The products with S, T and M take fp32 values as two bf16 each and leave out lo · lo: about 2^-17 a term,
// which sums to some 6e-6 of a result, twice over in u. fp32 alone would be 3e-7, one bf16 3e-3.
constexpr double kSplit = 2e-5, kSplitWorstToken = 8e-5;

struct Case {
  bool bounded;
  int heads;
};

class KdaChunkOnGpu : public testing::TestWithParam<Case> {
 protected:
  KdaInputs inputs(uint32_t seed, int tokens) const {
    Random random(seed + 10 * GetParam().heads + GetParam().bounded);
    return KdaInputs(random, tokens, GetParam().heads, GetParam().bounded);
  }
};

TEST_P(KdaChunkOnGpu, IsTheRecurrence) {
  constexpr int kTokens = 224;
  const KdaInputs x = inputs(100, kTokens);
  SequenceRun run(x);
  step(test::gpu(), run, 0, kTokens);
  Doubles state;
  const Doubles want = test::kda_recurrence(x, &state);
  const double error = test::relative_l2(run.out, want);
  const double state_error = test::relative_l2(stored_state(run), state);
  RecordProperty("relative_l2", std::to_string(error));
  RecordProperty("state_relative_l2", std::to_string(state_error));
  EXPECT_LT(error, kSplit);
  EXPECT_LT(state_error, kSplit);
  for (int t = 0; t < kTokens; ++t) {
    const std::vector<float> row(run.out.begin() + t * run.D(), run.out.begin() + (t + 1) * run.D());
    ASSERT_LT(test::relative_l2(row, Doubles(want.begin() + t * run.D(), want.begin() + (t + 1) * run.D())),
              kSplitWorstToken)
        << t;
  }
  EXPECT_EQ(*run.cache.slot(0).base, kTokens);
}

// The same steps on both devices: outputs, state and what the slots keep. k and the conv inputs are copies,
// G is the row's own log decay on CUDA and their sum on the CPU, T differs by fp32 rounding alone, w also by
// the splits.
TEST_P(KdaChunkOnGpu, AgreesWithTheCpuBackend) {
  constexpr int kTokens = 109;
  const KdaInputs x = inputs(200, kTokens);
  cpu::PlainBackend plain(2);
  SequenceRun got(x), want(x);
  int at = 0;
  for (int rows : {5, 1, 40, 7, 1, 1, 3, 51}) {
    step(test::gpu(), got, at, rows);
    step(plain, want, at, rows);
    at += rows;
  }
  ASSERT_EQ(at, kTokens);
  EXPECT_LT(test::relative_l2(got.out, test::widen(want.out)), kSplit);
  EXPECT_LT(test::relative_l2(stored_state(got), test::widen(stored_state(want))), kSplit);
  const KdaSlot a = got.cache.slot(0), b = want.cache.slot(0);
  ASSERT_EQ(*a.base, *b.base);
  const int64_t D = got.D();
  std::vector<float> G(D);
  for (int64_t p = *a.base; p < kTokens; ++p) {
    const int64_t place = p % KdaSlot::kRing, row = place * D, T = place * x.heads * kChunk;
    EXPECT_TRUE(same_bits(a.k + row, b.k + row, D)) << p;
    for (int64_t d = 0; d < D; ++d) G[d] = p == *a.base ? a.G[row + d] : G[d] + a.G[row + d];
    EXPECT_TRUE(same_bits(G.data(), b.G + row, D)) << p;
    EXPECT_TRUE(same_bits(a.conv_input + 3 * row, b.conv_input + 3 * row, 3 * D)) << p;
    const auto relative = [](const float* x, const float* y, int64_t n) {
      return test::relative_l2(std::vector<float>(x, x + n), Doubles(y, y + n));
    };
    EXPECT_LT(relative(a.T + T, b.T + T, x.heads * kChunk), 2e-6) << p;
    EXPECT_LT(relative(a.w + row, b.w + row, D), kSplitWorstToken) << p;
  }
}

TEST_P(KdaChunkOnGpu, StepsOfAnySizeAndDroppedDraftsKeepTheBits) {
  constexpr int kTokens = 150;
  const KdaInputs x = inputs(300, kTokens), wrong = inputs(301, kTokens);
  SequenceRun whole(x);
  step(test::gpu(), whole, 0, kTokens);
  for (int round = 0; round < 6; ++round) {
    Random random(310 + round);
    SequenceRun run(x);
    for (int at = 0; at < kTokens;) {
      const int rows = std::min(kTokens - at, 1 + random.below(round < 3 ? 20 : 50));
      if (random.below(2) && at > 0) {  // drafts that are all rejected
        const int drafts = std::min(kTokens - at, 1 + random.below(8));
        step(test::gpu(), {{.run = &run, .x = &wrong, .start = at, .rows = drafts, .accepted = at}});
        run.cache.set_length(at);
      }
      step(test::gpu(), run, at, rows);
      at += rows;
    }
    expect_same(run, whole, kTokens, "round " + std::to_string(round));
  }
}

TEST_P(KdaChunkOnGpu, DecodeOneByOneKeepsTheBits) {
  constexpr int kTokens = 70;
  const KdaInputs x = inputs(400, kTokens);
  SequenceRun whole(x), one(x);
  step(test::gpu(), whole, 0, kTokens);
  for (int at = 0; at < kTokens; ++at) step(test::gpu(), one, at, 1);
  expect_same(one, whole, kTokens, "one by one");
}

// A step of `width` rows of which the first is certain and the others are drafts: some are right, the rest is
// dropped and comes again.
TEST_P(KdaChunkOnGpu, VerificationKeepsTheBits) {
  constexpr int kTokens = 100;
  const KdaInputs x = inputs(500, kTokens), wrong = inputs(501, kTokens);
  SequenceRun whole(x);
  step(test::gpu(), whole, 0, kTokens);
  for (int width = 1; width <= 8; ++width) {
    Random random(510 + width);
    SequenceRun run(x);
    int at = 0;
    while (at < kTokens - 1) {
      const int rows = std::min(width, kTokens - 1 - at), right = 1 + random.below(rows);
      KdaInputs mixed = x;  // from the first wrong draft on, another sequence
      const int64_t D = run.D(), from = at + right;
      const auto swap_tail = [&](auto& to, const auto& other, int64_t row) {
        std::copy(other.begin() + from * row, other.end(), to.begin() + from * row);
      };
      swap_tail(mixed.conv_input, wrong.conv_input, 3 * D);
      swap_tail(mixed.q, wrong.q, D), swap_tail(mixed.k, wrong.k, D), swap_tail(mixed.v, wrong.v, D);
      swap_tail(mixed.g, wrong.g, D), swap_tail(mixed.beta, wrong.beta, x.heads);
      step(test::gpu(), {{.run = &run, .x = &mixed, .start = at, .rows = rows, .accepted = at + 1}});
      at += right;
      run.cache.set_length(at);
    }
    step(test::gpu(), run, at, 1);  // stores what was accepted before
    expect_same(run, whole, kTokens, "width " + std::to_string(width));
  }
}

// Alone, and in steps with others: one that prefills beside decoding ones (blocks find their chunk by
// search), and many of about the same length.
TEST_P(KdaChunkOnGpu, BatchMatesChangeNothing) {
  constexpr int kTokens = 120, kSequences = 9;
  std::vector<KdaInputs> x;
  for (int s = 0; s < kSequences; ++s) x.push_back(inputs(600 + s, kTokens));
  std::vector<SequenceRun> alone, together;
  std::vector<int> at(kSequences);
  for (int s = 0; s < kSequences; ++s) {
    alone.emplace_back(x[s]);
    together.emplace_back(x[s]);
    step(test::gpu(), alone[s], 0, kTokens);
    at[s] = 3 * s;  // phases differ
    if (at[s] > 0) step(test::gpu(), together[s], 0, at[s]);
  }
  Random random(620);
  for (int round = 0; round < 40; ++round) {
    std::vector<Part> parts;
    const int long_one = round % 3 == 0 ? random.below(kSequences) : -1;
    for (int s = 0; s < kSequences; ++s) {
      const int wanted = s == long_one ? 90 : round % 3 == 1 ? 1 : 1 + random.below(8);
      const int rows = std::min(wanted, kTokens - at[s]);
      if (rows == 0) continue;
      parts.push_back(
          {.run = &together[s], .x = &x[s], .start = at[s], .rows = rows, .accepted = at[s] + rows});
      at[s] += rows;
    }
    if (!parts.empty()) step(test::gpu(), parts);
  }
  for (int s = 0; s < kSequences; ++s) {
    if (at[s] < kTokens) step(test::gpu(), together[s], at[s], kTokens - at[s]);
    expect_same(together[s], alone[s], kTokens, "sequence " + std::to_string(s));
  }
}

TEST_P(KdaChunkOnGpu, TwentyRepeatsGiveTheSameBits) {
  constexpr int kTokens = 200;
  const KdaInputs x = inputs(700, kTokens);
  SequenceRun first(x);
  step(test::gpu(), first, 0, kTokens);
  for (int repeat = 0; repeat < 20; ++repeat) {
    SequenceRun run(x);
    step(test::gpu(), run, 0, 37);
    step(test::gpu(), run, 37, kTokens - 37);
    expect_same(run, first, kTokens, "repeat " + std::to_string(repeat));
  }
}

INSTANTIATE_TEST_SUITE_P(, KdaChunkOnGpu,
                         testing::Values(Case{true, 2}, Case{false, 2}, Case{true, 5}, Case{false, 12}),
                         [](const auto& info) {
                           return std::string(info.param.bounded ? "bounded" : "unbounded") +
                                  std::to_string(info.param.heads);
                         });

// A token whose query, key, value, decay or β is NaN leaves the rows before it in its chunk as they were, in
// a step of all rows as in small ones; from its own row on every way gives the same bits.
TEST(KdaChunkNaN, ReachesNoEarlierRow) {
  constexpr int kTokens = 40, kHeads = 2, kBad = 26;  // row 10 of its chunk
  Random random(850);
  const KdaInputs clean(random, kTokens, kHeads, true);
  SequenceRun want(clean);
  step(test::gpu(), want, 0, kTokens);
  const int64_t D = want.D();
  for (int part = 0; part < 5; ++part) {
    KdaInputs x = clean;
    const bf16 nan = float_to_bf16(NAN);
    if (part == 0) x.q[kBad * D + 5] = nan;
    if (part == 1) x.k[kBad * D + 5] = nan;
    if (part == 2) x.v[kBad * D + 5] = nan;
    if (part == 3) x.g[kBad * D + 5] = NAN;
    if (part == 4) x.beta[kBad * kHeads] = NAN;
    SequenceRun whole(x), one(x), several(x);
    step(test::gpu(), whole, 0, kTokens);
    for (int at = 0; at < kTokens; ++at) step(test::gpu(), one, at, 1);
    for (int at = 0; at < kTokens; at += 8) step(test::gpu(), several, at, 8);
    EXPECT_TRUE(same_bits(whole.out.data(), want.out.data(), kBad * D)) << part;
    EXPECT_TRUE(std::isnan(whole.out[kBad * D + 5])) << part;
    for (const SequenceRun* other : {&one, &several}) {
      EXPECT_TRUE(same_bits(whole.out.data(), other->out.data(), kBad * D)) << part;
      for (int64_t n = kBad * D; n < kTokens * D; ++n) {
        const float a = whole.out[n], b = other->out[n];
        ASSERT_TRUE(std::isnan(a) ? std::isnan(b) : a == b) << part << ", " << n;
      }
    }
  }
}

// Many heads in a step: blocks of whole heads instead of 32 value columns give the bits of those.
TEST(KdaChunkWidths, WideAndNarrowBlocksGiveTheSameBits) {
  constexpr int kTokens = 38, kHeads = 12, kSequences = 22;
  std::vector<KdaInputs> x;
  for (int s = 0; s < kSequences; ++s) {
    Random random(800 + s);
    x.emplace_back(random, kTokens, kHeads, s % 2 == 0);
  }
  std::vector<SequenceRun> alone, together;
  for (const KdaInputs& inputs : x) {
    alone.emplace_back(inputs);
    together.emplace_back(inputs);
    step(test::gpu(), alone.back(), 0, kTokens);
    step(test::gpu(), together.back(), 0, 12);
  }
  for (int at = 12, rows = 1; at < kTokens; at += rows, rows = rows % 8 + 1) {
    rows = std::min(rows, kTokens - at);
    std::vector<Part> parts;
    for (int s = 0; s < kSequences; ++s)
      parts.push_back({.run = &together[s], .x = &x[s], .start = at, .rows = rows, .accepted = at + rows});
    step(test::gpu(), parts);
  }
  for (int s = 0; s < kSequences; ++s)
    expect_same(together[s], alone[s], kTokens, "sequence " + std::to_string(s));
}

// q, k and v of the whole sequence in steps of any size: the same bits on the device, and those of the CPU
// but for the few values that fall to the other side of a rounding boundary.
TEST(KdaConvOnGpu, AgreesWithTheCpuBackendInStepsOfAnySize) {
  constexpr int kTokens = 60, kHeads = 3, kD = kHeads * kHead;
  Random random(900);
  const KdaInputs x(random, kTokens, kHeads, true);
  const Shared<float> taps = test::shared(random.floats(3 * kD * 4, 0.5f));
  KdaWeights w;
  w.conv_q = taps.data(), w.conv_k = taps.data() + kD * 4, w.conv_v = taps.data() + 2 * kD * 4;
  const KdaConfig config = kda_config(kHeads);
  struct Outputs {
    Shared<bf16> q, k, v;
  };
  const auto run_steps = [&](Backend& backend, const std::vector<int>& steps) {
    Outputs all{test::poisoned<bf16>(kTokens * kD), test::poisoned<bf16>(kTokens * kD),
                test::poisoned<bf16>(kTokens * kD)};
    const Shared<bf16> conv_input = test::shared(x.conv_input);
    SequenceRun run(x);
    int at = 0;
    for (int rows : steps) {
      const GpuStep host({{.first_row = 0, .rows = rows, .start = at, .accepted = at + rows}},
                         {run.cache.slot(0)});
      const bool on_gpu = &backend == &test::gpu();
      if (on_gpu) host.begin();
      backend.kda_conv_norm_gate({.weights = w,
                                  .config = config,
                                  .sequences = host.sequences(),
                                  .slots = host.slots(),
                                  .conv_input = conv_input.data() + int64_t{at} * 3 * kD,
                                  .q = all.q.data() + at * kD,
                                  .k = all.k.data() + at * kD,
                                  .v = all.v.data() + at * kD});
      if (on_gpu) test::gpu().memory().wait();
      step(backend, run, at, rows);  // keeps the conv inputs
      at += rows;
    }
    EXPECT_EQ(at, kTokens);
    return all;
  };
  cpu::PlainBackend plain(2);
  const Outputs cpu = run_steps(plain, {60}), whole = run_steps(test::gpu(), {60});
  EXPECT_LT(test::relative_l2(whole.q, cpu.q), test::kBf16SamePlaces);
  EXPECT_LT(test::relative_l2(whole.k, cpu.k), test::kBf16SamePlaces);
  EXPECT_EQ(whole.v, cpu.v);  // no sum over channels in v
  for (const std::vector<int>& steps :
       {std::vector<int>{1, 1, 1, 1, 1, 5, 50}, std::vector<int>{2, 37, 1, 20}}) {
    const Outputs split = run_steps(test::gpu(), steps);
    EXPECT_EQ(split.q, whole.q);
    EXPECT_EQ(split.k, whole.k);
    EXPECT_EQ(split.v, whole.v);
  }
}

// From 1,024 rows on a warp takes several rows of a step, across the ends of sequences.
TEST(KdaConvOnGpu, RunsOfRowsGiveTheSameBits) {
  constexpr int kHeads = 2, kD = kHeads * kHead;
  Random random(910);
  const std::vector<int> lengths = {700, 1, 2, 333, 5, 1};
  const Shared<float> taps = test::shared(random.floats(3 * kD * 4, 0.5f));
  KdaWeights w;
  w.conv_q = taps.data(), w.conv_k = taps.data() + kD * 4, w.conv_v = taps.data() + 2 * kD * 4;
  const KdaConfig config = kda_config(kHeads);
  std::vector<KdaInputs> x;
  std::vector<SequenceRun> runs;
  x.reserve(lengths.size());
  std::vector<SequenceRows> sequences;
  std::vector<KdaSlot> slots;
  Shared<bf16> conv_input;
  int total = 0;
  for (int rows : lengths) {
    x.emplace_back(random, 1, kHeads, true);
    runs.emplace_back(x.back());
    std::vector<bf16> ring = random.bf16s(int64_t{KdaSlot::kRing} * 3 * kD);
    slots.push_back(runs.back().cache.slot(0));
    std::copy(ring.begin(), ring.end(), slots.back().conv_input);
    const int start = random.below(40);
    sequences.push_back({.first_row = total, .rows = rows, .start = start, .accepted = start + rows});
    const std::vector<bf16> in = random.bf16s(int64_t{rows} * 3 * kD);
    conv_input.insert(conv_input.end(), in.begin(), in.end());
    total += rows;
  }
  ASSERT_GE(total, 1024);
  const auto run = [&](std::span<const SequenceRows> rows, std::span<const KdaSlot> slot) {
    std::vector<SequenceRows> local(rows.begin(), rows.end());
    const int first = local[0].first_row, count = local.back().first_row + local.back().rows - first;
    for (SequenceRows& s : local) s.first_row -= first;
    Shared<bf16> q = test::poisoned<bf16>(int64_t{count} * kD), k = q, v = q;
    const GpuStep host(local, {slot.begin(), slot.end()});
    host.begin();
    test::gpu().kda_conv_norm_gate({.weights = w,
                                    .config = config,
                                    .sequences = host.sequences(),
                                    .slots = host.slots(),
                                    .conv_input = conv_input.data() + int64_t{first} * 3 * kD,
                                    .q = q.data(),
                                    .k = k.data(),
                                    .v = v.data()});
    test::gpu().memory().wait();
    q.insert(q.end(), k.begin(), k.end());
    q.insert(q.end(), v.begin(), v.end());
    return q;
  };
  const Shared<bf16> together = run(sequences, slots);
  for (size_t s = 0; s < lengths.size(); ++s) {
    const Shared<bf16> alone = run(std::span(sequences).subspan(s, 1), std::span(slots).subspan(s, 1));
    const int64_t count = int64_t{lengths[s]} * kD;
    for (int part = 0; part < 3; ++part) {
      EXPECT_TRUE(same_bits(alone.data() + part * count,
                            together.data() + (int64_t{part} * total + sequences[s].first_row) * kD, count))
          << "sequence " << s << ", part " << part;
    }
  }
}

TEST(KdaProjectOnGpu, AgreesWithTheCpuBackend) {
  constexpr int kHeads = 2, kD = kHeads * kHead, kRows = 5, kHidden = 192;
  for (bool bounded : {true, false}) {
    for (bool full_rank : {true, false}) {
      Random random(1000 + bounded * 2 + full_rank);
      std::vector<Shared<bf16>> held;
      const auto matrix = [&](int out, int in) -> Linear {
        held.push_back(test::shared(Matrix(random, out, in).data));
        return {.weight = held.back().data(), .out = out, .in = in};
      };
      held.reserve(16);
      KdaWeights w;
      w.q = matrix(kD, kHidden), w.k = matrix(kD, kHidden), w.v = matrix(kD, kHidden);
      w.gate = matrix(kD, kHidden), w.g_a = matrix(kHead, kHidden), w.g_b = matrix(kD, kHead);
      w.f_a = matrix(kHead, kHidden), w.f_b = matrix(kD, kHead), w.beta = matrix(kHeads, kHidden);
      const Shared<float> a_log = test::shared(random.floats(kHeads, 0.7f));
      const Shared<float> dt_bias = test::shared(random.floats(kD, 2.0f, -1.0f));
      w.a_log = a_log.data(), w.dt_bias = dt_bias.data();
      KdaConfig config = kda_config(kHeads);
      config.full_rank_gate = full_rank;
      if (bounded) config.gate_lower_bound = -5.0f;
      const Shared<bf16> x = test::shared(random.bf16s(kRows * kHidden));
      struct Outputs {
        Shared<bf16> conv_input = test::poisoned<bf16>(kRows * 3 * kD),
                     gate = test::poisoned<bf16>(kRows * kD);
        Shared<float> g = test::poisoned<float>(kRows * kD), beta = test::poisoned<float>(kRows * kHeads);
      };
      const auto run = [&](Backend& backend) {
        Outputs out;
        backend.kda_project({.weights = w,
                             .config = config,
                             .x = x.data(),
                             .conv_input = out.conv_input.data(),
                             .gate = out.gate.data(),
                             .g = out.g.data(),
                             .beta = out.beta.data(),
                             .rows = kRows});
        test::gpu().memory().wait();
        return out;
      };
      cpu::PlainBackend plain(2);
      const Outputs got = run(test::gpu()), want = run(plain);
      EXPECT_LT(test::relative_l2(got.conv_input, want.conv_input), test::kBf16SamePlaces);
      EXPECT_LT(test::relative_l2(got.gate, want.gate), test::kBf16SamePlaces);
      EXPECT_LT(test::relative_l2(got.g, want.g), 1e-4)
          << "f_a is rounded to bf16 and may fall to the other side";
      EXPECT_LT(test::relative_l2(got.beta, want.beta), 2e-6);
    }
  }
}

TEST(KdaOutputOnGpu, AgreesWithTheCpuBackend) {
  constexpr int kHeads = 4, kD = kHeads * kHead, kRows = 3, kHidden = 80;
  for (int lanes : {1, 2, 8}) {
    Random random(1100 + lanes);
    const Shared<bf16> o_proj = test::shared(Matrix(random, kHidden, kD).data);
    const Shared<float> norm = test::shared(random.floats(kHead, 0.2f, 1.0f));
    const Shared<float> o = test::shared(random.floats(kRows * kD, 0.3f));
    const Shared<bf16> gate = test::shared(random.bf16s(kRows * kD, 2.0f));
    KdaWeights w;
    w.o_norm = norm.data();
    w.o = {.weight = o_proj.data(), .out = kHidden, .in = kD};
    const KdaConfig config = kda_config(kHeads);
    const auto run = [&](Backend& backend) {
      Shared<float> partial = test::poisoned<float>(int64_t{lanes} * kRows * kHidden);
      backend.kda_output({.weights = w,
                          .config = config,
                          .o = o.data(),
                          .gate = gate.data(),
                          .eps = 1e-5f,
                          .partial = partial.data(),
                          .rows = kRows,
                          .lanes = lanes});
      test::gpu().memory().wait();
      return partial;
    };
    cpu::PlainBackend plain(2);
    EXPECT_LT(test::relative_l2(run(test::gpu()), run(plain)), test::kBf16SamePlaces) << lanes << " lanes";
  }
}

}  // namespace
}  // namespace perigee
