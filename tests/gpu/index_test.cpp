// index_select on the device: the selection rule exactly where scores are exact, within a rounding of the
// scores elsewhere, and by bits what a row may not depend on.
#include "ops/index_case.h"

#include <functional>

#include "gpu/both_devices.h"

namespace perigee {
namespace {

using test::IndexCase, test::Random;

IndexCase integers(uint32_t seed, int heads, int top_k, std::initializer_list<std::pair<int, int>> keys_rows,
                   int levels, IndexKeyFormat format = IndexKeyFormat::kBf16) {
  Random random(seed);
  IndexCase c{.heads = heads, .top_k = top_k, .format = format};
  for (const auto& [keys, rows] : keys_rows) c.add_integers(random, keys, rows, levels);
  return c;
}

std::vector<int32_t> row_of(const IndexCase& c, const IndexCase::Selection& s, int64_t row) {
  return {s.selected.begin() + row * c.top_k, s.selected.begin() + (row + 1) * c.top_k};
}

void expect_rows_alone(const IndexCase& c, const std::string& what) {
  const IndexCase::Selection all = c.run(test::gpu());
  int64_t row = 0;
  for (size_t s = 0; s < c.sequences.size(); ++s) {
    for (int r = 0; r < c.sequences[s].rows; ++r, ++row) {
      const IndexCase::Selection alone = c.part(static_cast<int>(s), r, 1).run(test::gpu());
      EXPECT_EQ(alone.selected, row_of(c, all, row)) << what << ", sequence " << s << ", row " << r;
      EXPECT_EQ(alone.count[0], all.count[row]) << what;
    }
  }
}

TEST(GpuIndexSelect, LengthsTiesAndSpecialScores) {
  for (const test::NamedIndexCase& c : test::exact_index_cases())
    EXPECT_TRUE(c.inputs.run(test::gpu()) == c.inputs.brute_force()) << c.name;
}

TEST(GpuIndexSelect, MinusZeroIsZero) {
  EXPECT_EQ(test::minus_zero_case().run(test::gpu()).selected, (std::vector<int32_t>{0, 1}));
}

// Rows of one batch on both sides of top-k; lengths around it.
TEST(GpuIndexSelect, AroundTwoThousand) {
  const IndexCase c =
      integers(1, 4, 2048, {{2046, 1}, {2047, 1}, {2048, 1}, {2049, 1}, {2050, 4}, {4095, 2}, {3, 3}}, 5000);
  EXPECT_TRUE(c.run(test::gpu()) == c.brute_force());
}

// Long rows, few (a cluster each) and more (a block each), with plateaus around the last key selected that no
// list of candidates would hold: all equal, two or three scores, many.
TEST(GpuIndexSelect, PlateausOfLongRows) {
  for (int levels : {1, 2, 3, 50, 3000}) {
    const IndexCase few = integers(20 + levels, 1, 2048, {{20'011, 2}, {17'000, 1}}, levels);
    EXPECT_TRUE(few.run(test::gpu()) == few.brute_force()) << levels << " levels, few rows";
    const IndexCase many = integers(30 + levels, 1, 2048, {{20'011, 17}, {2'100, 3}}, levels);
    EXPECT_TRUE(many.run(test::gpu()) == many.brute_force()) << levels << " levels, many rows";
  }
}

// One head whose score of position p is value(p), a bf16.
IndexCase scored(int keys, int rows, int top_k, const std::function<float(int)>& value) {
  IndexCase::Sequence s{.key = std::vector<float>(size_t{128} * keys),
                        .query = std::vector<float>(size_t{128} * rows),
                        .weight = std::vector<float>(rows, 1.0f),
                        .rows = rows};
  for (int p = 0; p < keys; ++p) s.key[size_t{128} * p] = bf16_to_float(float_to_bf16(value(p)));
  for (int r = 0; r < rows; ++r) s.query[size_t{128} * r] = 1.0f;
  IndexCase c{.heads = 1, .top_k = top_k};
  c.sequences = {s};
  return c;
}

// Rising scores make every key a candidate, falling ones none behind the first; a plateau ends each way, and
// the last key alone is better than all.
TEST(GpuIndexSelect, ScoresInAnyOrderOfPositions) {
  constexpr int kKeys = 20'011;
  const std::pair<const char*, std::function<float(int)>> orders[] = {
      {"rising", [](int p) { return 1.0f + static_cast<float>(p); }},
      {"falling", [](int p) { return static_cast<float>(kKeys - p); }},
      {"rising, then falling", [](int p) { return static_cast<float>(std::min(p, kKeys - p)); }},
      {"one plateau after the other", [](int p) { return static_cast<float>(1 + p / 4'000); }},
      {"plateaus that fall", [](int p) { return static_cast<float>(9 - p / 4'000); }},
      {"the last is best", [](int p) { return p < kKeys - 20 ? 1.0f : 2.0f; }},
  };
  for (const auto& [name, value] : orders) {
    for (int top_k : {1, 100, 2048}) {
      const IndexCase c = scored(kKeys, 17, top_k, value);
      EXPECT_TRUE(c.run(test::gpu()) == c.brute_force()) << name << ", top " << top_k;
    }
  }
}

// Lengths around what a block takes at a time and holds.
TEST(GpuIndexSelect, AroundChunksOfManyRows) {
  for (int levels : {2, 3000}) {
    IndexCase c =
        integers(40 + levels, 1, 2048, {{4'098, 4}, {8'194, 4}, {12'290, 4}, {2'050, 4}, {9'000, 3}}, levels);
    for (int top_k : {1, 2'047, 2'048}) {
      c.top_k = top_k;
      EXPECT_TRUE(c.run(test::gpu()) == c.brute_force()) << levels << " levels, top " << top_k;
    }
  }
}

// top_k at and over what the kernel that reads a row once can hold.
TEST(GpuIndexSelect, LargeTopK) {
  for (int levels : {2, 3000}) {
    IndexCase c = integers(50 + levels, 1, 4096, {{4'095, 1}, {4'098, 3}, {9'000, 10}, {20'011, 5}}, levels);
    for (int top_k : {4'095, 4'096, 4'097, 10'000}) {
      c.top_k = top_k;
      EXPECT_TRUE(c.run(test::gpu()) == c.brute_force()) << levels << " levels, top " << top_k;
    }
  }
}

TEST(GpuIndexSelect, HeadsInAnyNumber) {
  for (int heads : {1, 3, 8, 31, 32, 33, 64}) {
    const IndexCase c = integers(heads, heads, 40, {{300, 3}, {45, 5}}, 400);
    EXPECT_TRUE(c.run(test::gpu()) == c.brute_force()) << heads << " heads";
  }
}

// Scores that round to the same bf16 lie within one unit, up to 2^-7 of their size; 1e-4 for the sum of terms
// of both signs.
TEST(GpuIndexSelect, EveryFormatWithinARoundingOfTheScores) {
  for (IndexKeyFormat format : {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kMxfp4}) {
    Random random(9);
    IndexCase c{.heads = 32, .top_k = 64, .format = format};
    c.add(random, 700, 3);
    c.add(random, 66, 2);
    c.add(random, 1000, 9);
    EXPECT_LT(c.worst_gap(c.run(test::gpu())), 0x1p-7 + 1e-4) << index_key_format_name(format);
    expect_rows_alone(c, std::string(index_key_format_name(format)));
  }
}

// The plain backend sums in another order: of the positions selected, few may differ, and those within the
// same gap.
TEST(GpuIndexSelect, AgreesWithThePlainBackend) {
  for (IndexKeyFormat format : {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kMxfp4}) {
    Random random(10);
    IndexCase c{.heads = 32, .top_k = 256, .format = format};
    c.add(random, 3000, 4);
    cpu::PlainBackend plain(2);
    const IndexCase::Selection got = c.run(test::gpu()), want = c.run(plain);
    EXPECT_EQ(got.count, want.count);
    int64_t other = 0;
    for (int row = 0; row < 4; ++row) {
      const std::vector<int32_t> a = row_of(c, got, row), b = row_of(c, want, row);
      std::vector<int32_t> both;
      std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
      other += c.top_k - static_cast<int64_t>(both.size());
    }
    EXPECT_LE(other, 4) << index_key_format_name(format);
  }
}

TEST(GpuIndexSelect, ARowDoesNotDependOnChunksOrVerifyWidths) {
  Random random(11);
  IndexCase c{.heads = 32, .top_k = 64, .format = IndexKeyFormat::kFp8};
  c.add(random, 600, 130);
  const IndexCase::Selection all = c.run(test::gpu());
  for (int width : {1, 2, 3, 4, 5, 6, 7, 8, 64}) {
    std::vector<int32_t> in_parts;
    for (int from = width == 1 ? 120 : 0; from < 130; from += width) {
      const IndexCase::Selection part = c.part(0, from, std::min(width, 130 - from)).run(test::gpu());
      in_parts.insert(in_parts.end(), part.selected.begin(), part.selected.end());
    }
    EXPECT_EQ(in_parts, std::vector<int32_t>(all.selected.end() - static_cast<int64_t>(in_parts.size()),
                                             all.selected.end()))
        << "width " << width;
  }
}

TEST(GpuIndexSelect, ARowDoesNotDependOnItsBatch) {
  Random random(12);
  IndexCase c{.heads = 32, .top_k = 100, .format = IndexKeyFormat::kMxfp4};
  for (int i = 0; i < 64; ++i) c.add(random, 50 + 17 * i, 1);
  const IndexCase::Selection all = c.run(test::gpu());
  for (int size : {1, 2, 7, 16, 17, 40}) {
    IndexCase some = c;
    some.sequences.assign(c.sequences.end() - size, c.sequences.end());
    EXPECT_EQ(some.run(test::gpu()).selected,
              std::vector<int32_t>(all.selected.end() - int64_t{size} * c.top_k, all.selected.end()))
        << size << " rows";
  }
}

// More rows times keys than the workspace holds: several launches, rows of one sequence on both sides.
TEST(GpuIndexSelect, RowsInSeveralLaunches) {
  Random random(13);
  IndexCase c{.heads = 1, .top_k = 64, .format = IndexKeyFormat::kFp8};
  c.add(random, 40'000, 2'000);
  const IndexCase::Selection all = c.run(test::gpu());
  for (int row : {0, 1, 1'000, 1'668, 1'669, 1'670, 1'999}) {
    const IndexCase::Selection alone = c.part(0, row, 1).run(test::gpu());
    EXPECT_EQ(alone.selected, row_of(c, all, row)) << "row " << row;
  }
}

TEST(GpuIndexSelect, RepeatsAreEqual) {
  Random random(14);
  IndexCase c{.heads = 32, .top_k = 500, .format = IndexKeyFormat::kFp8};
  c.add(random, 17'000, 3);
  const IndexCase::Selection first = c.run(test::gpu());
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(c.run(test::gpu()) == first);
}

}  // namespace
}  // namespace perigee
