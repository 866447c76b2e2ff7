// sparse_attend and dense_attend against softmax attention in fp64: tiles, lanes, segments, cache formats.
#include "ops/attend_case.h"
#include "ops/vectors.h"

namespace perigee {
namespace {

using test::AttendCase, test::Random;

double error_of(const AttendCase& c) {
  cpu::PlainBackend backend(2);
  return test::relative_l2(c.run(backend), c.fp64());
}

TEST(DenseAttend, AnyLength) {
  for (int keys : {1, 2, 15, 16, 17, 63, 64, 65, 128, 333}) {
    Random random(keys);
    AttendCase c;
    c.add(random, keys, std::min(keys, 3));
    EXPECT_LT(error_of(c), test::kBf16) << keys << " keys";
  }
}

TEST(DenseAttend, LanesAndSegments) {
  Random random(1);
  AttendCase c;
  c.add(random, 300, 2);
  for (int lanes : {1, 2, 4, 32}) {  // 32 lanes of 16 positions: some hold no key
    for (int segment : {64, 96, 100, 299, 4096}) {
      c.attention_lanes = lanes;
      c.dense_segment = segment;
      EXPECT_LT(error_of(c), test::kBf16) << lanes << " lanes, segments of " << segment;
    }
  }
}

// Logits far apart: the running max jumps between tiles, in both directions, and most keys count for nothing.
TEST(DenseAttend, SharpSoftmax) {
  Random random(2);
  for (int loudest : {0, 100, 199}) {
    AttendCase c{.attention_lanes = 2, .dense_segment = 64};
    c.add(random, 200, 1, 4.0f);
    AttendCase::Sequence& s = c.sequences[0];
    std::copy_n(s.query.begin(), AttendCase::kLatent, s.latent.begin() + loudest * AttendCase::kLatent);
    EXPECT_LT(error_of(c), test::kBf16);
  }
}

TEST(SparseAttend, SelectedPositions) {
  Random random(3);
  AttendCase c;
  c.add(random, 700, 3);
  for (int size : {1, 5, 64, 65, 500}) {
    c.choose(random, size);
    for (int lanes : {1, 4}) {
      c.attention_lanes = lanes;
      EXPECT_LT(error_of(c), test::kBf16) << size << " keys, " << lanes << " lanes";
    }
  }
}

TEST(SparseAttend, EveryLatentFormat) {
  Random random(4);
  for (LatentFormat format : {LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kNvfp4}) {
    AttendCase c{.format = format, .scale = format == LatentFormat::kBf16 ? 1.0f : 0.01f, .sparse = true};
    c.add(random, 90, 1);
    c.sequences[0].chosen = {{0, 7, 8, 63, 64, 89}};
    EXPECT_LT(error_of(c), test::kBf16) << latent_format_name(format);
  }
}

TEST(Attend, OracleVectors) {
  const test::Vectors v("attend");
  AttendCase c{.top_k = 4};
  c.sequences = {{.latent = v.bf16s("latent"), .query = v.bf16s("query"), .chosen = {}, .rows = 1}};
  std::vector<int32_t> selected = v.read<int32_t>("selected");
  selected.resize(3);  // of four places
  c.sequences[0].chosen = {selected};
  for (bool sparse : {false, true}) {
    c.sparse = sparse;
    cpu::PlainBackend backend(1);
    EXPECT_LT(test::relative_l2(c.run(backend), v.doubles(sparse ? "out_sparse" : "out_dense")), test::kBf16);
  }
}

}  // namespace
}  // namespace perigee
