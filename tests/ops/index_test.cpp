// index_select against brute force: the scores in fp64, the order by the selection rule's words. Inputs are
// small integers, whose sums are exact in fp32, so that ties are ties on both sides.
#include <limits>
#include <numeric>

#include "cache/sequence_cache.h"
#include "ops/reference.h"
#include "ops/vectors.h"

namespace perigee {
namespace {

using test::Doubles, test::Random;

// Index keys of one sequence in bf16 pages, and queries of its last rows.
struct Case {
  int heads, top_k, keys, rows;
  std::vector<float> key, query, weight;  // [keys, 128], [rows, heads, 128], [rows, heads]

  // [rows, top_k] as the stage lists them.
  std::vector<int32_t> select(IndexKeyFormat format = IndexKeyFormat::kBf16) const {
    SequenceCache cache(CacheShape{.attention_has_index = {true}, .index_format = format});
    cache.reserve(keys);
    const PageTable pages = cache.pages(0);
    for (int p = 0; p < keys; ++p) {
      uint8_t* page = pages.index_key(p / kPageTokens);
      encode_index_key(format, &key[p * 128], page + index_value_offset(format, p % kPageTokens),
                       page + index_scale_offset(format, p % kPageTokens));
    }
    std::vector<bf16> q;
    for (float x : query) q.push_back(float_to_bf16(x));
    const DsaConfig config{.num_heads = heads, .top_k = top_k, .layers = {0}};
    const SequenceRows sequence{.first_row = 0, .rows = rows, .start = keys - rows, .accepted = keys};
    std::vector<int32_t> selected(rows * top_k, -7), count(rows);
    cpu::PlainBackend(2).index_select({.config = config,
                                       .index_query = q.data(),
                                       .index_weight = weight.data(),
                                       .sequences = std::span(&sequence, 1),
                                       .pages = std::span(&pages, 1),
                                       .selected = selected.data(),
                                       .count = count.data()});
    for (int r = 0; r < rows; ++r) {
      EXPECT_EQ(count[r], std::min(top_k, keys - rows + r + 1));
      for (int i = count[r]; i < top_k; ++i) EXPECT_EQ(selected[r * top_k + i], -1);
    }
    return selected;
  }

  Doubles scores(int row) const {  // of the visible positions, rounded to bf16
    Doubles out;
    for (int p = 0; p <= keys - rows + row; ++p) {
      double sum = 0;
      for (int h = 0; h < heads; ++h) {
        double dot = 0;
        for (int d = 0; d < 128; ++d) dot += double{query[(row * heads + h) * 128 + d]} * key[p * 128 + d];
        sum += weight[row * heads + h] * (dot > 0 || std::isnan(dot) ? dot : 0);
      }
      out.push_back(test::rounded(sum));
    }
    return out;
  }

  // A stable sort by descending score with NaN last keeps ties in ascending position: the rule, word by word.
  std::vector<int32_t> brute_force() const {
    std::vector<int32_t> out;
    for (int r = 0; r < rows; ++r) {
      const Doubles s = scores(r);
      std::vector<int32_t> order(s.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        return std::isnan(s[a]) || std::isnan(s[b]) ? !std::isnan(s[a]) && std::isnan(s[b]) : s[a] > s[b];
      });
      order.resize(std::min<size_t>(order.size(), top_k));
      std::sort(order.begin(), order.end());
      order.resize(top_k, -1);
      out.insert(out.end(), order.begin(), order.end());
    }
    return out;
  }
};

// Keys of small integers; `levels` of them differ, so few levels make plateaus.
Case random_case(uint32_t seed, int keys, int rows, int top_k, int levels) {
  Random random(seed);
  Case c{.heads = 2, .top_k = top_k, .keys = keys, .rows = rows, .key = {}, .query = {}, .weight = {}};
  const std::vector<float> distinct = random.floats(levels * 128, 1.0f);
  for (int p = 0; p < keys; ++p) {
    const int level = random.below(levels);
    for (int d = 0; d < 128; ++d) c.key.push_back(std::round(distinct[level * 128 + d]));
  }
  for (int i = 0; i < rows * c.heads * 128; ++i) c.query.push_back(static_cast<float>(random.below(5) - 2));
  for (int i = 0; i < rows * c.heads; ++i) c.weight.push_back(static_cast<float>(random.below(7) - 3));
  return c;
}

TEST(IndexSelect, LengthsAroundTopK) {
  for (int keys : {1, 2, 31, 32, 33, 34, 63, 64, 65, 129, 500}) {
    const Case c = random_case(keys, keys, std::min(keys, 3), 32, 1000);
    EXPECT_EQ(c.select(), c.brute_force()) << keys << " keys";
  }
}

TEST(IndexSelect, TiesAndPlateaus) {
  for (int levels : {1, 2, 3, 7}) {
    for (int top_k : {1, 8, 64}) {
      const Case c = random_case(100 + levels, 200, 5, top_k, levels);
      EXPECT_EQ(c.select(), c.brute_force()) << levels << " levels, top " << top_k;
    }
  }
}

TEST(IndexSelect, NanComesLast) {
  Case c = random_case(7, 90, 4, 16, 1000);
  c.weight.assign(c.weight.size(), -1.0f);  // even the lowest scores come before NaN
  for (int p : {0, 3, 40, 41, 88}) c.key[p * 128 + 5] = std::numeric_limits<float>::quiet_NaN();
  c.query[5] = 1.0f;
  EXPECT_EQ(c.select(), c.brute_force());
  c.key.assign(c.key.size(), std::numeric_limits<float>::quiet_NaN());  // all NaN: the first positions
  EXPECT_EQ(c.select(), c.brute_force());
}

TEST(IndexSelect, InfinityFirstAndMinusInfinityBeforeNan) {
  Case c = random_case(8, 50, 1, 4, 1000);
  c.query.assign(c.query.size(), 1.0f);
  c.weight = {1.0f, 0.5f};
  for (int d = 0; d < 128; ++d) {
    c.key[20 * 128 + d] = 3e38f;
    c.key[10 * 128 + d] = std::numeric_limits<float>::quiet_NaN();
  }
  EXPECT_EQ(c.select(), c.brute_force());
  c.weight = {-1.0f, -0.5f};
  c.top_k = 49;  // all but the NaN
  EXPECT_EQ(c.select(), c.brute_force());
}

// A score that underflows to −0 ties with +0.
TEST(IndexSelect, MinusZeroIsZero) {
  Case c{.heads = 1, .top_k = 2, .keys = 6, .rows = 1, .key = {}, .query = {}, .weight = {-0x1p-100f}};
  c.key.assign(6 * 128, 0.0f);
  c.query.assign(128, 1.0f);
  for (int d = 0; d < 128; ++d) c.key[0 * 128 + d] = c.key[2 * 128 + d] = 0x1p-60f;  // score −2^−153 → −0
  EXPECT_EQ(c.select(IndexKeyFormat::kFp8), (std::vector<int32_t>{0, 1}));
}

TEST(IndexSelect, OracleVectors) {
  const test::Vectors v("index");
  Case c{.heads = 2, .top_k = 4, .keys = 8, .rows = 8, .key = {}, .query = {}, .weight = {}};
  for (bf16 x : v.bf16s("k")) c.key.push_back(bf16_to_float(x));
  for (bf16 x : v.bf16s("q")) c.query.push_back(bf16_to_float(x));
  for (bf16 x : v.bf16s("head_weight")) c.weight.push_back(bf16_to_float(x));
  // The oracle folds 128^-½ · heads^-½, which changes no order.
  EXPECT_EQ(c.select(), v.read<int32_t>("selected"));
}

}  // namespace
}  // namespace perigee
