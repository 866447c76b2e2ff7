// The planner's arithmetic: exact bytes of the models it is for, addresses that never meet, and the choice of
// the block against a count of every length.
#include "cache/cache_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "model/step.h"

namespace perigee {
namespace {

constexpr LatentFormat kLatents[] = {LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kNvfp4};
constexpr IndexKeyFormat kIndexKeys[] = {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kMxfp4};

CacheKinds kinds_of(const std::string& model, LatentFormat latent, IndexKeyFormat index, int tp = 1) {
  return cache_kinds(cache_shape(load_config(model), latent, index, tp));
}

CacheKinds k31(LatentFormat latent, IndexKeyFormat index, int tp) {
  return kinds_of("kimi-k3.1-pro", latent, index, tp);
}

// A draft of five MLA layers beside the target.
CacheKinds with_draft(CacheKinds kinds) {
  kinds.pages.push_back({.name = "draft latent", .layers = 5, .entry_bytes = 576});
  return kinds;
}

// Compressed attention of two ratios, index keys on one of them, sliding windows of 128 tokens and the
// compressors' rolling residuals.
CacheKinds deepseek_v4_like() {
  return {.pages = {{.name = "latent / 4", .layers = 30, .entry_bytes = 584, .tokens_per_entry = 4},
                    {.name = "index key / 4", .layers = 30, .entry_bytes = 132, .tokens_per_entry = 4},
                    {.name = "latent / 128", .layers = 31, .entry_bytes = 584, .tokens_per_entry = 128}},
          .states = {{.name = "window", .layers = 61, .heads = 1, .record_bytes = 128 * 584},
                     {.name = "residual", .layers = 61, .heads = 1, .record_bytes = 8 * 1024 * 4}},
          .slot_bytes = 0};
}

// KDA and NoPE MLA with index keys pooled by four.
CacheKinds glm_5_3_flash_like() {
  return {.pages = {{.name = "latent", .layers = 12, .entry_bytes = 576},
                    {.name = "index key / 4", .layers = 12, .entry_bytes = 132, .tokens_per_entry = 4}},
          .states = {{.name = "KDA state", .layers = 36, .heads = 8, .record_bytes = 67840}},
          .slot_bytes = 36 * 1024};
}

// A model cut to its first KDA layers.
CacheKinds without_attention() {
  return cache_kinds(cache_shape(load_config("kimi-k3.1-pro", {{"num_hidden_layers", "2"}}),
                                 LatentFormat::kFp8, IndexKeyFormat::kFp8, 1));
}

struct Named {
  std::string name;
  CacheKinds kinds;
  int context_parallel = 1;
};

std::vector<Named> every_mix() {
  std::vector<Named> mixes;
  for (LatentFormat latent : kLatents) {
    for (IndexKeyFormat index : kIndexKeys) {
      for (int tp = 1; tp <= 32; tp *= 2) {
        const std::string name = "K3.1 " + std::string(latent_format_name(latent)) + " " +
                                 std::string(index_key_format_name(index)) + " TP" + std::to_string(tp);
        mixes.push_back({name, k31(latent, index, tp)});
      }
    }
    mixes.push_back({"K3", kinds_of("kimi-k3", latent, IndexKeyFormat::kFp8, 8)});
    mixes.push_back({"Kimi-Linear", kinds_of("kimi-linear-48b-a3b", latent, IndexKeyFormat::kFp8)});
    mixes.push_back({"tiny-k31", kinds_of("models/tiny-k31", latent, IndexKeyFormat::kFp8)});
  }
  const CacheKinds k31_tp8 = k31(LatentFormat::kFp8, IndexKeyFormat::kFp8, 8);
  mixes.push_back({"K3.1 TP8 and draft", with_draft(k31_tp8)});
  mixes.push_back({"K3.1 TP8 DCP8", k31_tp8, 8});
  mixes.push_back({"K3.1 TP8 DCP2 and draft", with_draft(k31_tp8), 2});
  mixes.push_back({"no attention", without_attention()});
  mixes.push_back({"no attention, DCP4", without_attention(), 4});
  mixes.push_back({"DeepSeek-V4-like", deepseek_v4_like()});
  mixes.push_back({"GLM-5.3-Flash-like", glm_5_3_flash_like()});
  return mixes;
}

TEST(CachePlan, BytesPerToken) {
  const auto bytes = [](const CacheKinds& kinds, int dcp = 1) {
    return CachePlan(kinds, {.context_parallel = dcp}).bytes_per_token();
  };
  EXPECT_EQ(bytes(kinds_of("kimi-k3", LatentFormat::kFp8, IndexKeyFormat::kFp8)), 13824);
  for (int tp = 1; tp <= 32; tp *= 2) {  // latents and keys are whole on every rank
    EXPECT_EQ(bytes(k31(LatentFormat::kFp8, IndexKeyFormat::kFp8, tp)), 16992);
    EXPECT_EQ(bytes(k31(LatentFormat::kNvfp4, IndexKeyFormat::kFp8, tp)), 11616);
    EXPECT_EQ(bytes(k31(LatentFormat::kNvfp4, IndexKeyFormat::kMxfp4, tp)), 10080);
  }
  const std::vector<double> want = {33792, 30816, 29280, 19968, 16992, 15456, 14592, 11616, 10080};
  std::vector<double> got;
  for (LatentFormat latent : kLatents) {
    for (IndexKeyFormat index : kIndexKeys) got.push_back(bytes(k31(latent, index, 8)));
  }
  EXPECT_EQ(got, want);
  EXPECT_EQ(bytes(k31(LatentFormat::kFp8, IndexKeyFormat::kFp8, 8), 8), 2124);
  EXPECT_EQ(bytes(kinds_of("kimi-linear-48b-a3b", LatentFormat::kBf16, IndexKeyFormat::kFp8)), 7 * 1152);
  EXPECT_EQ(bytes(kinds_of("models/tiny-k31", LatentFormat::kFp8, IndexKeyFormat::kMxfp4)), 2 * (576 + 68));
  EXPECT_EQ(bytes(with_draft(k31(LatentFormat::kFp8, IndexKeyFormat::kFp8, 8))), 16992 + 5 * 576);
  EXPECT_EQ(bytes(deepseek_v4_like()), 30 * (584 + 132) / 4.0 + 31 * 584 / 128.0);
  EXPECT_EQ(bytes(glm_5_3_flash_like()), 12 * (576 + 132 / 4.0));
}

TEST(CachePlan, StatesOfK31AtTP8) {
  const CachePlan plan(k31(LatentFormat::kFp8, IndexKeyFormat::kFp8, 8));
  EXPECT_EQ(plan.state_bytes(), 69 * 814080);
  EXPECT_EQ(plan.block_tokens(), 256);
  EXPECT_EQ(plan.row_bytes(), 256 * 16992);
  EXPECT_EQ(std::lround(plan.state_bytes() / plan.bytes_per_token()), 3306);
  for (const BlockChoice& c : plan.choices()) {
    if (c.block_tokens == 256 || c.block_tokens == 512) {
      EXPECT_NEAR(c.state_waste, 0.078, 0.0005) << c.block_tokens;
    } else if (c.block_tokens == 1024 || c.block_tokens == 2048) {
      EXPECT_NEAR(c.state_waste, 0.193, 0.0005) << c.block_tokens;
    }
  }
  const CachePlan linear(kinds_of("kimi-linear-48b-a3b", LatentFormat::kBf16, IndexKeyFormat::kFp8));
  EXPECT_EQ(std::lround(linear.state_bytes() / linear.bytes_per_token()), 5384);
}

TEST(CachePlan, SlotsHoldTheirRings) {
  const CacheKinds kinds = k31(LatentFormat::kFp8, IndexKeyFormat::kFp8, 8);
  const int64_t D = 12 * 128;
  EXPECT_EQ(kinds.slot_bytes, 69 * KdaSlot::kRing * (3 * D * 2 + D * 2 + D * 4 + D * 4 + 12 * 16 * 4));
}

// Every entry of every layer of a block, and every record of a state, against every other byte by intervals.
TEST(CachePlan, AddressesAreDistinctAndInsideTheRow) {
  for (const Named& mix : every_mix()) {
    SCOPED_TRACE(mix.name);
    const CachePlan plan(mix.kinds, {.context_parallel = mix.context_parallel});
    EXPECT_EQ(plan.row_bytes(), plan.pages_per_row() * plan.page_bytes());
    std::vector<std::pair<int64_t, int64_t>> pieces;  // [from, to)
    int64_t used = 0;
    for (size_t kind = 0; kind < plan.kinds().pages.size(); ++kind) {
      const PageKind& k = plan.kinds().pages[kind];
      const int64_t bytes = plan.page_tokens() / k.tokens_per_entry * k.entry_bytes;
      for (int layer = 0; layer < k.layers; ++layer) {
        for (int64_t page = 0; page < plan.pages_per_row(); ++page) {
          const int64_t from = plan.page_offset(static_cast<int>(kind), layer, page);
          EXPECT_EQ(from % 16, 0);
          EXPECT_EQ(from / plan.page_bytes(), page);  // page-major
          pieces.emplace_back(from, from + bytes);
          used += bytes;
        }
      }
    }
    const auto expect_apart = [&](std::vector<std::pair<int64_t, int64_t>>& row) {
      std::sort(row.begin(), row.end());
      int64_t end = 0;
      for (const auto& [from, to] : row) {
        ASSERT_GE(from, end);
        end = to;
      }
      ASSERT_LE(end, plan.row_bytes());
    };
    expect_apart(pieces);
    EXPECT_EQ(static_cast<double>(used), plan.bytes_per_token() * static_cast<double>(plan.block_tokens()));
    if (mix.name.starts_with("K")) {
      EXPECT_EQ(used, plan.row_bytes());  // no padding in this family
    }

    std::vector<std::vector<std::pair<int64_t, int64_t>>> rows(plan.state_rows());
    int64_t state = 0;
    for (size_t kind = 0; kind < plan.kinds().states.size(); ++kind) {
      const StateKind& k = plan.kinds().states[kind];
      for (int layer = 0; layer < k.layers; ++layer) {
        const CachePlan::StateAddress& at = plan.state_address(static_cast<int>(kind), layer);
        for (int head = 0; head < k.heads; ++head) {
          const int64_t from = at.offset + head * at.head_stride;
          EXPECT_EQ(from % 16, 0);
          rows.at(at.row).emplace_back(from, from + k.record_bytes);
          state += k.record_bytes;
        }
      }
    }
    for (auto& row : rows) {
      EXPECT_FALSE(row.empty());
      expect_apart(row);
    }
    EXPECT_EQ(state, plan.state_bytes());
  }
}

// Rows of states are head-major: a range of heads, of all layers in the row, is one piece.
TEST(CachePlan, AHeadRangeOfAStateRowIsOnePiece) {
  const CachePlan plan(k31(LatentFormat::kNvfp4, IndexKeyFormat::kMxfp4, 8));
  for (int row = 0; row < plan.state_rows(); ++row) {
    int64_t first = -1, last = 0, bytes = 0;
    for (int layer = 0; layer < 69; ++layer) {
      const CachePlan::StateAddress& at = plan.state_address(0, layer);
      if (at.row != row) continue;
      for (int head = 3; head < 6; ++head) {
        const int64_t from = at.offset + head * at.head_stride;
        first = first < 0 ? from : std::min(first, from);
        last = std::max(last, from + kKdaRecordBytes);
        bytes += kKdaRecordBytes;
      }
    }
    EXPECT_EQ(last - first, bytes);
  }
}

// Counts every length of the mix one by one.
TEST(CachePlan, ChoosesTheLeastWaste) {
  for (const Named& mix : every_mix()) {
    SCOPED_TRACE(mix.name);
    const std::vector<int64_t> lengths = {100, 999, 5000};
    const CachePlan plan(mix.kinds, {.context_parallel = mix.context_parallel, .length_mix = lengths});
    const BlockChoice* best = nullptr;
    for (const BlockChoice& c : plan.choices()) {
      if (c.state_rows == 0 && plan.state_bytes() > 0) continue;
      double waste = 0;
      for (int64_t length : lengths) {
        double sum = 0;
        for (int64_t n = length / 2 + 1; n <= length / 2 + length; ++n) {
          sum += static_cast<double>((n + c.block_tokens - 1) / c.block_tokens * c.row_bytes) -
                 static_cast<double>(n) * plan.bytes_per_token();
        }
        waste += sum / static_cast<double>(length);
      }
      waste = waste / static_cast<double>(lengths.size()) +
              static_cast<double>(c.state_rows * c.row_bytes - plan.state_bytes());
      EXPECT_NEAR(c.expected_waste / waste, 1.0, 1e-9) << c.block_tokens;
      if (!best || waste < best->expected_waste) best = &c;
    }
    ASSERT_TRUE(best);
    EXPECT_EQ(plan.block_tokens(), best->block_tokens);
  }
}

TEST(CachePlan, WithoutAttentionARowIsALayersState) {
  const CachePlan plan(without_attention());
  EXPECT_EQ(plan.bytes_per_token(), 0);
  EXPECT_EQ(plan.state_rows(), 2);
  EXPECT_LE(plan.row_bytes() - plan.state_bytes() / 2, 256 * 16);
}

TEST(CachePlan, OnEqualWasteTheSmallerBlock) {
  // Lengths 1 … 3 in a model without states: a block of 64 and one of 128 waste different amounts, so make
  // the rows equal by lengths that fill both.
  const CacheKinds kinds{.pages = {{.name = "latent", .layers = 1, .entry_bytes = 64}}, .states = {}};
  const CachePlan plan(kinds, {.length_mix = {}});
  for (const BlockChoice& c : plan.choices()) EXPECT_EQ(c.expected_waste, 0);
  EXPECT_EQ(plan.block_tokens(), 64);
}

TEST(CachePlan, ContextParallelRanksShareABlockByGranules) {
  const CacheKinds kinds = k31(LatentFormat::kFp8, IndexKeyFormat::kFp8, 8);
  for (int ranks : {1, 2, 4, 8}) {
    const CachePlan plan(kinds, {.context_parallel = ranks});
    EXPECT_EQ(plan.rank_tokens() * ranks, plan.block_tokens());
    std::set<std::pair<int, int64_t>> seen;
    for (int64_t p = 0; p < 2 * plan.block_tokens(); ++p) {
      EXPECT_EQ(plan.owner(p), plan.owner(p / 16 * 16));
      EXPECT_EQ(plan.rank_position(p) / plan.rank_tokens(),
                p / plan.block_tokens());  // same row on all ranks
      EXPECT_TRUE(seen.insert({plan.owner(p), plan.rank_position(p)}).second);
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), 2 * plan.block_tokens());
    EXPECT_EQ(seen.rbegin()->second, 2 * plan.rank_tokens() - 1);
  }
}

std::string usage_error(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    return e.what();
  }
  return "no error";
}

TEST(CachePlan, RefusesWithNumbers) {
  const CacheKinds kinds = k31(LatentFormat::kFp8, IndexKeyFormat::kFp8, 1);
  const std::string small = usage_error([&] { CachePlan(kinds, {.block_tokens = 256}); });
  EXPECT_NE(small.find("256 tokens has 4349952 bytes"), std::string::npos) << small;
  EXPECT_NE(small.find("6512640"), std::string::npos) << small;
  const std::string odd = usage_error([&] { CachePlan(kinds, {.block_tokens = 300}); });
  EXPECT_NE(odd.find("--block-size 300"), std::string::npos) << odd;
  const std::string dcp = usage_error([&] { CachePlan(kinds, {.context_parallel = 3}); });
  EXPECT_NE(dcp.find("--decode-context-parallel-size 3"), std::string::npos) << dcp;
  CacheKinds wide = kinds;
  wide.states[0].record_bytes = int64_t{1} << 40;
  EXPECT_NE(usage_error([&] { CachePlan{wide}; }).find("105553116266496"), std::string::npos);
}

TEST(CacheCapacity, CountsRowsStatesAndSlots) {
  const CachePlan plan(k31(LatentFormat::kFp8, IndexKeyFormat::kFp8, 8));
  const int64_t rows = 1000, slots = 3, memory = rows * plan.row_bytes() + slots * plan.slot_bytes() + 5;
  const CacheCapacity c = capacity(plan, memory, slots, 10 * 256 + 1);
  EXPECT_EQ(c.rows, rows);
  EXPECT_EQ(c.used_bytes, memory - 5);
  EXPECT_EQ(c.tokens, (rows - 3 * 14) * 256);
  EXPECT_EQ(c.full_contexts, memory / ((11 + 14) * plan.row_bytes() + plan.slot_bytes()));
  const std::string message = usage_error([&] { capacity(plan, 1000000, 3, 100); });
  EXPECT_NE(message.find("1000000 bytes"), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string(3 * plan.slot_bytes() + (3 * 14 + 1) * plan.row_bytes())),
            std::string::npos)
      << message;
}

}  // namespace
}  // namespace perigee
