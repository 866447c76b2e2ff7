// index_select against brute force: the scores in fp64, the order by the selection rule's words.
#include "ops/index_case.h"
#include "ops/vectors.h"

namespace perigee {
namespace {

using test::IndexCase, test::Random;

IndexCase::Selection select(const IndexCase& c) {
  cpu::PlainBackend backend(2);
  return c.run(backend);
}

TEST(IndexSelect, LengthsTiesAndSpecialScores) {
  for (const test::NamedIndexCase& c : test::exact_index_cases())
    EXPECT_TRUE(select(c.inputs) == c.inputs.brute_force()) << c.name;
}

TEST(IndexSelect, MinusZeroIsZero) {
  EXPECT_EQ(select(test::minus_zero_case()).selected, (std::vector<int32_t>{0, 1}));
}

// Scores that round to the same bf16 lie within one unit, up to 2^-7 of their size.
TEST(IndexSelect, EveryFormatWithinARoundingOfTheScores) {
  for (IndexKeyFormat format : {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kMxfp4}) {
    Random random(9);
    IndexCase c{.heads = 4, .top_k = 64, .format = format};
    c.add(random, 700, 3);
    c.add(random, 66, 2);
    EXPECT_LT(c.worst_gap(select(c)), 0x1p-7 + 1e-5) << index_key_format_name(format);
  }
}

TEST(IndexSelect, OracleVectors) {
  const test::Vectors v("index");
  IndexCase c{.heads = 2, .top_k = 4};
  IndexCase::Sequence s{.key = {}, .query = {}, .weight = {}, .rows = 8};
  for (bf16 x : v.bf16s("k")) s.key.push_back(bf16_to_float(x));
  for (bf16 x : v.bf16s("q")) s.query.push_back(bf16_to_float(x));
  for (bf16 x : v.bf16s("head_weight")) s.weight.push_back(bf16_to_float(x));
  c.sequences = {s};
  // The oracle folds 128^-½ · heads^-½, which changes no order.
  EXPECT_EQ(select(c).selected, v.read<int32_t>("selected"));
}

}  // namespace
}  // namespace perigee
