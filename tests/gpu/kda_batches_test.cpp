// kda_chunk on the device in steps of many sequences: by bits what a sequence gives alone.
#include "gpu/kda_run.h"

namespace perigee {
namespace {

using test::expect_same, test::gpu, test::KdaInputs, test::Part, test::Random, test::SequenceRun, test::step;

// Sequences of a few inputs, each in its own phase: sequence s takes input s mod their number.
struct Sequences {
  std::vector<KdaInputs> inputs;
  std::vector<SequenceRun> alone, together;  // one step each of an input; the steps of many
  std::vector<int> at;

  Sequences(uint32_t seed, int distinct, int sequences, int tokens, int heads) : at(sequences) {
    for (int i = 0; i < distinct; ++i) {
      Random random(seed + i);
      inputs.emplace_back(random, tokens, heads, i % 2 == 0);
    }
    for (const KdaInputs& x : inputs) {
      alone.emplace_back(x);
      step(gpu(), alone.back(), 0, tokens);
    }
    for (int s = 0; s < sequences; ++s) together.emplace_back(inputs[s % distinct]);
  }
  int tokens() const { return inputs[0].tokens; }
  bool done() const {
    return std::all_of(at.begin(), at.end(), [&](int a) { return a == tokens(); });
  }
  // One step, wanted(s) rows of sequence s if it has so many left.
  template <typename Wanted>
  void take(const Wanted& wanted) {
    std::vector<Part> parts;
    for (size_t s = 0; s < together.size(); ++s) {
      const int rows = std::min(wanted(static_cast<int>(s)), tokens() - at[s]);
      if (rows == 0) continue;
      parts.push_back(
          {.run = &together[s], .x = together[s].x, .start = at[s], .rows = rows, .accepted = at[s] + rows});
      at[s] += rows;
    }
    if (!parts.empty()) step(gpu(), parts);
  }
  void expect_all_as_alone() {
    for (size_t s = 0; s < together.size(); ++s)
      expect_same(together[s], alone[s % alone.size()], tokens(), "sequence " + std::to_string(s));
  }
};

// Decoding of more than 64 sequences in every phase of a chunk, in lock step and not, with drafts' widths:
// few enough heads in all for blocks of a slice, and more.
TEST(KdaBatches, DecodingOfManySequences) {
  for (int heads : {1, 2}) {
    Sequences c(1000 + heads, 6, 130, 44, heads);
    c.take([](int s) { return s % 16; });
    for (int i = 0; i < 10; ++i) c.take([](int) { return 1; });
    for (int i = 0; !c.done(); ++i) c.take([&](int s) { return 1 + (s + i) % 8; });
    c.expect_all_as_alone();
  }
}

// Prefills and decoding in one step, of so many heads and chunks that their tiles do not fit the workspace
// together: heads take turns.
TEST(KdaBatches, HeadsTakeTurns) {
  constexpr int kHeads = 96, kSequences = 64;
  Sequences c(1100, 2, kSequences, 40, kHeads);
  c.take([](int s) { return s % 16; });
  c.take([](int s) { return s % 4 == 0 ? 1 + s % 8 : 9 + s % 12; });
  while (!c.done()) c.take([](int s) { return s % 3 == 0 ? 8 : 12; });
  c.expect_all_as_alone();
}

}  // namespace
}  // namespace perigee
