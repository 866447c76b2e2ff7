// The lane tree is the same for every number of ranks, and the selection order is total.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "ops/break_rule.h"
#include "ops/cpu/backend.h"

namespace perigee {
namespace {

// What W ranks do: rank r adds the lanes it owns (l mod W = r) by the strides ≥ W, then the ranks' sums meet.
float tree_over_ranks(const std::vector<float>& lanes, int ranks) {
  const int count = static_cast<int>(lanes.size());
  std::vector<float> sums(ranks);
  for (int r = 0; r < ranks; ++r) {
    std::vector<float> own;
    for (int l = r; l < count; l += ranks) own.push_back(lanes[l]);
    sums[r] = lane_tree(own.data(), static_cast<int>(own.size()));
  }
  return lane_tree(sums.data(), ranks);
}

TEST(Lanes, TheTreeIsTheSameForEveryNumberOfRanks) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<float> lanes(8);
    for (float& x : lanes) x = normal(random) * std::exp2(static_cast<float>(random() % 20));
    std::vector<float> copy = lanes;
    const float want = lane_tree(copy.data(), 8);
    for (int ranks : {1, 2, 4, 8}) {
      const float got = tree_over_ranks(lanes, ranks);
      ASSERT_EQ(std::memcmp(&got, &want, 4), 0) << ranks << " ranks";
    }
  }
}

// All-equal scores: the selection must be the lowest positions, in whatever company the row is computed.
TEST(Selection, TiesGoToTheEarlierPosition) {
  constexpr int kKeys = 96, kTopK = 32;
  cpu::PlainBackend backend(2);
  const DsaConfig config{.num_heads = 1, .head_dim = 128, .top_k = kTopK, .layers = {0}};
  std::vector<uint8_t> pages[2];
  uint8_t* addresses[2];
  for (int p = 0; p < 2; ++p) {
    pages[p].resize(kPageTokens * index_key_bytes(IndexKeyFormat::kBf16));
    addresses[p] = pages[p].data();
  }
  const std::vector<float> key(128, 1.0f);
  for (int p = 0; p < kKeys; ++p) {
    encode_index_key(IndexKeyFormat::kBf16, key.data(),
                     addresses[p / kPageTokens] + index_value_offset(IndexKeyFormat::kBf16, p % kPageTokens),
                     nullptr);
  }
  const PageTable table{.page = addresses, .has_index = true, .index_format = IndexKeyFormat::kBf16};
  for (int rows : {1, 3}) {
    const SequenceRows sequence{.first_row = 0, .rows = rows, .start = kKeys - rows, .accepted = kKeys};
    const std::vector<bf16> query(rows * 128, float_to_bf16(1.0f));
    const std::vector<float> weight(rows, 1.0f);
    std::vector<int32_t> selected(rows * kTopK), count(rows);
    backend.index_select({.config = config,
                          .index_query = query.data(),
                          .index_weight = weight.data(),
                          .sequences = std::span(&sequence, 1),
                          .pages = std::span(&table, 1),
                          .selected = selected.data(),
                          .count = count.data()});
    for (int i = 0; i < kTopK; ++i) EXPECT_EQ(selected[i], i) << "rows " << rows;
  }
}

}  // namespace
}  // namespace perigee
