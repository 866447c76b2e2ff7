// sparse_attend and dense_attend on the device: against fp64, against the plain CPU backend, and by bits what
// a row may not depend on.
#include "ops/attend_case.h"

#include "base/error.h"
#include "gpu/both_devices.h"
#include "ops/fast_backends.h"

namespace perigee {
namespace {

using test::AttendCase, test::Random;

constexpr LatentFormat kFormats[] = {LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kNvfp4};
float scale_of(LatentFormat format) { return format == LatentFormat::kBf16 ? 1.0f : 0.01f; }

// Both round p and the value to bf16; their sums differ by fp32 roundings (1e-6 of a logit, of a value),
// which move less than one value in a hundred over a rounding boundary of bf16, by 2^-8 of it.
constexpr double kAgainstPlain = 5e-4;

void expect_accurate(const AttendCase& c, const std::string& what) {
  cpu::PlainBackend plain(2);
  const std::vector<bf16> got = c.run(test::gpu());
  EXPECT_LT(test::relative_l2(got, c.fp64()), test::kBf16) << what;
  EXPECT_LT(test::relative_l2(got, test::widen(c.run(plain))), kAgainstPlain) << what;
}

// Several sequences of different lengths, each with several rows.
AttendCase batch(int heads, LatentFormat format, std::span<const int> lengths, int most_rows, uint32_t seed) {
  Random random(seed);
  AttendCase c{.heads = heads, .format = format, .scale = scale_of(format)};
  for (size_t i = 0; i < lengths.size(); ++i)
    c.add(random, lengths[i], std::min(lengths[i], 1 + static_cast<int>(i) % most_rows));
  return c;
}

// Every row alone gives the bits that it has in the batch.
void expect_rows_alone(const AttendCase& c, const std::string& what) {
  const std::vector<bf16> all = c.run(test::gpu());
  int64_t at = 0;
  for (size_t s = 0; s < c.sequences.size(); ++s) {
    for (int r = 0; r < c.sequences[s].rows; ++r, at += c.row_size()) {
      const std::vector<bf16> want(all.begin() + at, all.begin() + at + c.row_size());
      EXPECT_TRUE(test::same_bits(c.part(static_cast<int>(s), r, 1).run(test::gpu()), want))
          << what << ", sequence " << s << ", row " << r;
    }
  }
}

TEST(GpuDenseAttend, AnyLength) {
  for (int keys : {1, 2, 15, 16, 17, 63, 64, 65, 128, 333, 600}) {
    Random random(keys);
    AttendCase c;
    c.add(random, keys, std::min(keys, 3));
    expect_accurate(c, std::to_string(keys) + " keys");
  }
}

TEST(GpuDenseAttend, LanesAndSegments) {
  Random random(1);
  AttendCase c{.heads = 3};
  c.add(random, 300, 2);
  c.add(random, 40, 1);
  for (int lanes : {1, 2, 3, 4, 32}) {
    for (int segment : {64, 96, 100, 299, 4096}) {
      c.attention_lanes = lanes;
      c.dense_segment = segment;
      const std::string what = std::to_string(lanes) + " lanes, segments of " + std::to_string(segment);
      expect_accurate(c, what);
      expect_rows_alone(c, what);
    }
  }
}

// Logits far apart: the running max jumps between tiles, in both directions.
TEST(GpuDenseAttend, SharpSoftmax) {
  Random random(2);
  for (int loudest : {0, 100, 199}) {
    AttendCase c{.attention_lanes = 2, .dense_segment = 64};
    c.add(random, 200, 1, 4.0f);
    AttendCase::Sequence& s = c.sequences[0];
    std::copy_n(s.query.begin(), AttendCase::kLatent, s.latent.begin() + loudest * AttendCase::kLatent);
    expect_accurate(c, "loudest " + std::to_string(loudest));
  }
}

// Rows of few heads share products when there are many: sequences that begin anywhere, rows that begin or end
// a segment, segments that end inside a chunk.
TEST(GpuDenseAttend, RowsThatShareProducts) {
  struct Shape {
    int heads, lanes, segment;
  };
  for (const Shape& s : {Shape{1, 1, 64}, Shape{8, 3, 64}, Shape{12, 1, 4096}, Shape{16, 1, 100},
                         Shape{32, 1, 4096}, Shape{32, 2, 48}, Shape{33, 1, 64}}) {
    Random random(s.heads);
    AttendCase c{.heads = s.heads, .attention_lanes = s.lanes, .dense_segment = s.segment};
    c.add(random, 210, 101);
    c.add(random, 67, 40);
    c.add(random, 33, 33);
    expect_rows_alone(c, std::to_string(s.heads) + " heads, " + std::to_string(s.lanes) +
                             " lanes, segments of " + std::to_string(s.segment));
  }
  Random random(9);
  AttendCase c{.heads = 32, .dense_segment = 64};
  c.add(random, 130, 71);
  expect_accurate(c, "rows that share products");
}

// A key that is not finite reaches no row before it.
TEST(GpuDenseAttend, NaNReachesNoEarlierRow) {
  for (LatentFormat format : kFormats) {
    for (int heads : {4, 32}) {
      Random random(heads);
      AttendCase c{.heads = heads, .format = format, .scale = scale_of(format), .dense_segment = 64};
      c.add(random, 96, 80);
      const std::vector<bf16> want = c.run(test::gpu());
      constexpr int kBad = 53;  // a key, of row 37
      std::fill_n(c.sequences[0].latent.begin() + kBad * AttendCase::kLatent, AttendCase::kLatent,
                  bf16{0x7FFF});
      const std::vector<bf16> got = c.run(test::gpu());
      const int64_t before = (kBad - 16) * c.row_size();
      EXPECT_TRUE(std::equal(got.begin(), got.begin() + before, want.begin()))
          << latent_format_name(format) << ", " << heads << " heads";
      EXPECT_FALSE(test::same_bits(got, want));
    }
  }
}

TEST(GpuDenseAttend, ASegmentOfManyTiles) {  // more than the addresses at hand hold
  Random random(5);
  AttendCase c{.heads = 1, .dense_segment = 4096};
  c.add(random, 4500, 2);
  expect_accurate(c, "4500 keys");
  expect_rows_alone(c, "4500 keys");
}

TEST(GpuSparseAttend, SelectedPositions) {
  Random random(3);
  AttendCase c;
  c.add(random, 700, 3);
  c.add(random, 20, 2);
  for (int size : {1, 5, 64, 65, 500}) {
    c.choose(random, size);
    for (int lanes : {1, 2, 3, 4}) {
      c.attention_lanes = lanes;
      expect_accurate(c, std::to_string(size) + " keys, " + std::to_string(lanes) + " lanes");
    }
  }
}

TEST(GpuAttend, EveryFormatAndNumberOfHeads) {
  const int lengths[] = {130, 7, 64, 257};
  for (LatentFormat format : kFormats) {
    for (int heads : {1, 12, 16, 17, 48, 96}) {
      AttendCase c = batch(heads, format, lengths, 3, 10 + heads);
      const std::string what =
          std::string(latent_format_name(format)) + ", " + std::to_string(heads) + " heads";
      expect_accurate(c, what + ", dense");
      expect_rows_alone(c, what + ", dense");
      Random random(heads);
      c.choose(random, 100);
      expect_accurate(c, what + ", sparse");
      expect_rows_alone(c, what + ", sparse");
    }
  }
}

// Batches on both sides of what runs as clusters, 1 to 64 rows.
TEST(GpuAttend, ARowDoesNotDependOnItsBatch) {
  for (LatentFormat format : kFormats) {
    std::vector<int> lengths;
    for (int i = 0; i < 64; ++i) lengths.push_back(20 + 13 * i);
    AttendCase c = batch(12, format, lengths, 1, 77);
    c.top_k = 256;
    for (bool sparse : {false, true}) {
      if (sparse) {
        Random random(8);
        c.choose(random, 200);
      }
      const std::vector<bf16> all = c.run(test::gpu());
      for (int size : {1, 2, 3, 8, 9, 17, 33, 40}) {
        AttendCase some = c;
        some.sequences.assign(c.sequences.end() - size, c.sequences.end());
        const std::vector<bf16> want(all.end() - size * c.row_size(), all.end());
        EXPECT_TRUE(test::same_bits(some.run(test::gpu()), want))
            << latent_format_name(format) << ", " << size << " rows";
      }
    }
  }
}

TEST(GpuAttend, ARowDoesNotDependOnChunksOrVerifyWidths) {
  for (LatentFormat format : kFormats) {
    Random random(6);
    AttendCase c{.heads = 12, .format = format, .scale = scale_of(format), .dense_segment = 128, .top_k = 96};
    c.add(random, 300, 150);
    for (bool sparse : {false, true}) {
      if (sparse) c.choose(random, 96);
      const std::vector<bf16> all = c.run(test::gpu());
      for (int width : {1, 2, 3, 4, 5, 6, 7, 8, 64}) {
        std::vector<bf16> in_parts;
        for (int from = width == 1 ? 140 : 0; from < 150; from += width) {
          const std::vector<bf16> part = c.part(0, from, std::min(width, 150 - from)).run(test::gpu());
          in_parts.insert(in_parts.end(), part.begin(), part.end());
        }
        const std::vector<bf16> want(all.end() - static_cast<int64_t>(in_parts.size()), all.end());
        EXPECT_TRUE(test::same_bits(in_parts, want)) << latent_format_name(format) << ", width " << width;
      }
    }
  }
}

// One step of decoding rows, verifications of every width and prefills, which one kernel takes in turns; a
// row alone and a dozen of the decoding ones are taken by clusters of 16 and of 8 blocks. Lengths lie around
// the tiles and around what such a cluster walks in a round.
TEST(GpuAttend, MixesOfDecodingVerifyingAndPrefill) {
  constexpr int kLengths[] = {1, 63, 64, 65, 511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049};
  constexpr int kDecoding = std::size(kLengths);
  for (LatentFormat format : kFormats) {
    Random random(90);
    AttendCase c{.heads = 3, .format = format, .scale = scale_of(format), .top_k = 2048};
    for (int length : kLengths) c.add(random, length, 1);
    for (int width = 2; width <= 8; ++width) c.add(random, 500 + 4 * width, width);
    c.add(random, 70, 70);
    c.add(random, 1060, 60);
    for (bool sparse : {false, true}) {
      if (sparse) c.choose(random, 1500);
      for (const auto& [lanes, segment] : {std::pair(1, 4096), {2, 512}}) {
        c.attention_lanes = lanes;
        c.dense_segment = segment;
        const std::string what = std::string(latent_format_name(format)) + (sparse ? ", sparse" : ", dense") +
                                 ", segments of " + std::to_string(segment);
        const std::vector<bf16> all = c.run(test::gpu());
        EXPECT_LT(test::relative_l2(all, c.fp64()), test::kBf16) << what;
        const auto expect_rows = [&](const AttendCase& some, int64_t first_row, const std::string& which) {
          const std::vector<bf16> got = some.run(test::gpu());
          const auto from = all.begin() + first_row * c.row_size();
          EXPECT_TRUE(test::same_bits(got, {from, from + static_cast<int64_t>(got.size())}))
              << what << ", " << which;
        };
        int64_t row = 0;
        for (int s = 0; s < static_cast<int>(c.sequences.size()); ++s) {
          const int rows = c.sequences[s].rows;
          const std::string which = "row of " + std::to_string(rows) + " of sequence " + std::to_string(s);
          expect_rows(c.part(s, 0, 1), row, "first " + which);
          if (rows > 1) expect_rows(c.part(s, rows - 1, 1), row + rows - 1, "last " + which);
          if (rows > 1 && rows <= 8) expect_rows(c.part(s, 0, rows), row, "every " + which);
          row += rows;
        }
        AttendCase decoding = c;
        decoding.sequences.resize(kDecoding);
        expect_rows(decoding, 0, "the decoding rows");
      }
    }
  }
}

// More rows than clusters walk, each so short that racecheck and the like are soon through.
TEST(GpuAttend, ManyShortRows) {
  std::vector<int> lengths;
  for (int i = 0; i < 48; ++i) lengths.push_back(1 + 4 * i);
  for (LatentFormat format : kFormats)
    expect_accurate(batch(2, format, lengths, 1, 91), std::string(latent_format_name(format)));
}

TEST(GpuAttend, RepeatsAreEqual) {
  const int lengths[] = {500, 90, 301};
  AttendCase c = batch(12, LatentFormat::kFp8, lengths, 4, 4);
  c.attention_lanes = 2;
  c.dense_segment = 128;
  const std::vector<bf16> first = c.run(test::gpu());
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(test::same_bits(c.run(test::gpu()), first));
}

TEST(GpuAttend, SizesThatDoNotFitAreNamed) {
  const MlaConfig config{.num_heads = 1, .kv_lora_rank = 256};
  SequenceCache cache(CacheShape{.attention_has_index = {false}}, test::gpu().memory(), 1);
  cache.reserve(1);
  test::AttentionStep step;
  step.add(cache, 1, 0);
  step.begin(test::gpu());
  try {
    test::gpu().dense_attend({.config = config,
                              .query = nullptr,
                              .sequences = step.sequences,
                              .pages = step.pages[0],
                              .selected = nullptr,
                              .count = nullptr,
                              .top_k = 0,
                              .attention_lanes = 1,
                              .dense_segment = 4096,
                              .out = nullptr});
    FAIL() << "a rank of 256 was taken";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("kv_lora_rank 256"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace perigee
