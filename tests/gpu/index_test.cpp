// index_select on the device: the selection rule exactly where scores are exact, within a rounding of the
// scores elsewhere, and by bits what a row may not depend on.
#include "ops/index_case.h"

#include <functional>
#include <numeric>

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

// Keys of which dimension r is the score of row r, so that one cache serves many patterns of scores. What is
// selected follows from the scores alone.
struct ScoredRows {
  using Score = std::function<float(int position)>;
  IndexCase inputs{.heads = 1};
  std::vector<Score> scores;  // a row each
  std::vector<int> visible;

  // Rows see keys − rows + 1, …, keys positions.
  void add(int keys, const std::vector<Score>& of_rows) {
    const int rows = static_cast<int>(of_rows.size());
    IndexCase::Sequence s{.key = std::vector<float>(size_t{128} * keys),
                          .query = std::vector<float>(size_t{128} * rows),
                          .weight = std::vector<float>(rows, 1.0f),
                          .rows = rows};
    for (int r = 0; r < rows; ++r) {
      for (int p = 0; p < keys; ++p) s.key[size_t{128} * p + r] = std::max(of_rows[r](p), 0.0f);
      s.query[size_t{128} * r + r] = 1.0f;
      scores.push_back(of_rows[r]);
      visible.push_back(keys - rows + r + 1);
    }
    inputs.sequences.push_back(std::move(s));
  }
  void expect_selected(int top_k, const std::string& what) {
    inputs.top_k = top_k;
    const IndexCase::Selection got = inputs.run(test::gpu());
    for (size_t row = 0; row < scores.size(); ++row) {
      std::vector<int32_t> want(visible[row]);
      std::iota(want.begin(), want.end(), 0);
      std::vector<float> x;
      for (int32_t p : want) x.push_back(round_to_bf16(std::max(scores[row](p), 0.0f)));
      std::stable_sort(want.begin(), want.end(), [&](int a, int b) { return x[a] > x[b]; });
      want.resize(std::min(top_k, visible[row]));
      std::sort(want.begin(), want.end());
      EXPECT_EQ(got.count[row], static_cast<int32_t>(want.size())) << what << ", row " << row;
      want.resize(top_k, -1);
      EXPECT_EQ(row_of(inputs, got, static_cast<int64_t>(row)), want) << what << ", row " << row;
    }
  }
};

// Rows of which the blocks of a cluster have all in registers, one key more, and many more. Ties and plateaus
// lie across the borders between blocks; the last place on a plateau is taken in every block in turn.
TEST(GpuIndexSelect, LongerRowsThanAClusterHolds) {
  const auto levels = [](int count) {
    return [count](int p) { return static_cast<float>(1 + p * 7'919ll % count); };
  };
  const auto plateau = [](int begin, int end) {
    return [=](int p) { return p >= begin && p < end ? 2.0f : 1.0f; };
  };
  const std::vector<ScoredRows::Score> patterns = {
      [](int) { return 1.0f; },
      levels(3),
      levels(5'003),
      [](int p) { return static_cast<float>(1 + p / 1'000); },
      [](int p) { return static_cast<float>(200 - p / 1'000); },
      plateau(16'300, 18'200),    // across a border, and not enough of it
      plateau(131'000, 140'000),  // in what lies beyond two rounds
      [](int p) { return p % 8'192 < 128 ? 3.0f
                         : p % 2         ? 2.0f
                                         : 1.0f; },
  };
  ScoredRows c;
  c.add(131'079, patterns);  // 131,072 to 131,079
  c.add(150'011, patterns);
  for (int top_k : {1, 2'048, 20'000}) c.expect_selected(top_k, "top " + std::to_string(top_k));
}

// A cluster's row whose keys are NaN or give −0, on both sides of the borders between its blocks: NaN comes
// last, −0 ties with 0.
TEST(GpuIndexSelect, NaNAndMinusZeroInLongRows) {
  constexpr int kKeys = 140'003;
  IndexCase c{.heads = 1, .format = IndexKeyFormat::kFp8};
  IndexCase::Sequence s{.key = std::vector<float>(size_t{128} * kKeys),
                        .query = std::vector<float>(128, 1.0f),
                        .weight = {-0x1p-100f},
                        .rows = 1};
  // Every third key gives −2^−153, which is −0 once it is rounded; some give NaN, a few less than 0.
  const auto is_nan = [](int p) { return p % 7 == 3 || (p >= 17'000 && p < 18'000); };
  const auto below_zero = [](int p) { return p % 11 == 5; };
  for (int p = 0; p < kKeys; ++p) {
    float* key = &s.key[size_t{128} * p];
    if (is_nan(p)) {
      key[9] = NAN;
    } else if (below_zero(p)) {
      key[0] = 1.0f;
    } else if (p % 3 == 0) {
      std::fill_n(key, 128, 0x1p-60f);
    }
  }
  c.sequences = {s};
  const auto kind = [&](int p) { return is_nan(p) ? 2 : below_zero(p) ? 1 : 0; };
  for (int top_k : {2'048, 110'000, 125'000}) {
    std::vector<int32_t> want(kKeys);
    std::iota(want.begin(), want.end(), 0);
    std::stable_sort(want.begin(), want.end(), [&](int a, int b) { return kind(a) < kind(b); });
    want.resize(top_k);
    std::sort(want.begin(), want.end());
    c.top_k = top_k;
    EXPECT_EQ(c.run(test::gpu()).selected, want) << "top " << top_k;
  }
}

// Rows of a cluster each, of which some see no more than they select.
TEST(GpuIndexSelect, ShortRowsBesideLongOnes) {
  const IndexCase c = integers(
      16, 1, 2048,
      {{1, 1}, {2'047, 1}, {2'048, 1}, {2'049, 1}, {2'050, 1}, {2'056, 1}, {9'000, 2}, {20'011, 2}}, 3000);
  EXPECT_TRUE(c.run(test::gpu()) == c.brute_force());
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

// A prefill of more than 8,192 rows, in several launches; lengths pass 2,048 and what a block holds.
TEST(GpuIndexSelect, MoreThan8192Rows) {
  const IndexCase c = integers(15, 1, 2'048, {{8'300, 8'300}, {40, 1}}, 700);
  const IndexCase::Selection all = c.run(test::gpu());
  for (int row : {0, 1, 2'046, 2'047, 2'048, 2'049, 4'097, 7'942, 7'943, 7'944, 8'191, 8'192, 8'299}) {
    const IndexCase part = c.part(0, row, 1);
    EXPECT_EQ(row_of(c, all, row), part.brute_force().selected) << "row " << row;
    EXPECT_EQ(part.run(test::gpu()).selected, row_of(c, all, row)) << "row " << row;
  }
  EXPECT_EQ(row_of(c, all, 8'300), c.part(1, 0, 1).brute_force().selected) << "the sequence beside it";
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
