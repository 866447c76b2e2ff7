// sparse_attend and dense_attend against softmax attention in fp64: tiles, lanes, segments, cache formats.
#include <numeric>

#include "cache/sequence_cache.h"
#include "ops/reference.h"
#include "ops/vectors.h"

namespace perigee {
namespace {

using test::Doubles, test::Random;

constexpr int kHeads = 2, kLatent = 576, kRank = 512;

struct Sequence {
  SequenceCache cache;
  Doubles latent;  // [keys, 576] as readers see them
  PageTable pages;

  Sequence(const std::vector<bf16>& values, LatentFormat format = LatentFormat::kBf16, float scale = 1.0f)
      : cache(CacheShape{.attention_has_index = {false}, .latent_format = format, .latent_scale = scale}) {
    const int keys = static_cast<int>(values.size()) / kLatent;
    cache.reserve(keys);
    pages = cache.pages(0);
    for (int p = 0; p < keys; ++p) {
      float x[kLatent];
      for (int d = 0; d < kLatent; ++d) x[d] = bf16_to_float(values[p * kLatent + d]);
      uint8_t* record = pages.latent(p / kPageTokens) + p % kPageTokens * latent_bytes(format);
      encode_latent(format, x, scale, record);
      bf16 stored[kLatent];
      decode_latent(format, record, scale, stored);
      for (bf16 v : stored) latent.push_back(bf16_to_float(v));
    }
  }
};

// One row and head over the given positions.
Doubles attention(const bf16* query, const Doubles& latent, const std::vector<int32_t>& keys) {
  Doubles s, out(kRank);
  for (int32_t p : keys) {
    double dot = 0;
    for (int d = 0; d < kLatent; ++d) dot += bf16_to_float(query[d]) * latent[int64_t{p} * kLatent + d];
    s.push_back(dot / std::sqrt(192.0));
  }
  const double top = *std::max_element(s.begin(), s.end());
  double total = 0;
  for (double& x : s) total += x = std::exp(x - top);
  for (size_t j = 0; j < keys.size(); ++j) {
    for (int d = 0; d < kRank; ++d) out[d] += s[j] / total * latent[int64_t{keys[j]} * kLatent + d];
  }
  return out;
}

struct Options {
  int attention_lanes = 1, dense_segment = 4096;
  bool sparse = false;
};

// The last `rows` positions of `keys`, dense or over the given selection; the stage against fp64.
double error_of(const Sequence& seq, const std::vector<bf16>& query, int rows, Options options,
                const std::vector<std::vector<int32_t>>& chosen = {}) {
  const int keys = static_cast<int>(seq.latent.size()) / kLatent, top_k = 600;
  const MlaConfig config{.num_heads = kHeads};
  const SequenceRows sequence{.first_row = 0, .rows = rows, .start = keys - rows, .accepted = keys};
  std::vector<int32_t> selected(rows * top_k, -1), count(rows);
  std::vector<bf16> out(int64_t{rows} * kHeads * kRank);
  Doubles want;
  for (int r = 0; r < rows; ++r) {
    std::vector<int32_t> visible(keys - rows + r + 1);
    std::iota(visible.begin(), visible.end(), 0);
    if (options.sparse) {
      visible = chosen[r];
      std::copy(visible.begin(), visible.end(), selected.begin() + r * top_k);
      count[r] = static_cast<int32_t>(visible.size());
    }
    for (int h = 0; h < kHeads; ++h) {
      const Doubles y = attention(&query[(int64_t{r} * kHeads + h) * kLatent], seq.latent, visible);
      want.insert(want.end(), y.begin(), y.end());
    }
  }
  cpu::PlainBackend backend(2);
  const AttendArgs args{.config = config,
                        .query = query.data(),
                        .sequences = std::span(&sequence, 1),
                        .pages = std::span(&seq.pages, 1),
                        .selected = selected.data(),
                        .count = count.data(),
                        .top_k = top_k,
                        .attention_lanes = options.attention_lanes,
                        .dense_segment = options.dense_segment,
                        .out = out.data()};
  options.sparse ? backend.sparse_attend(args) : backend.dense_attend(args);
  return test::relative_l2(out, want);
}

TEST(DenseAttend, AnyLength) {
  for (int keys : {1, 2, 15, 16, 17, 63, 64, 65, 128, 333}) {
    Random random(keys);
    const Sequence seq(random.bf16s(keys * kLatent));
    const int rows = std::min(keys, 3);
    EXPECT_LT(error_of(seq, random.bf16s(rows * kHeads * kLatent, 1.5f), rows, {}), test::kBf16)
        << keys << " keys";
  }
}

TEST(DenseAttend, LanesAndSegments) {
  Random random(1);
  const int keys = 300, rows = 2;
  const Sequence seq(random.bf16s(keys * kLatent));
  const std::vector<bf16> query = random.bf16s(rows * kHeads * kLatent, 1.5f);
  for (int lanes : {1, 2, 4, 32}) {  // 32 lanes of 16 positions: some hold no key
    for (int segment : {64, 96, 100, 299, 4096}) {
      EXPECT_LT(error_of(seq, query, rows, {.attention_lanes = lanes, .dense_segment = segment}), test::kBf16)
          << lanes << " lanes, segments of " << segment;
    }
  }
}

// Logits far apart: the running max jumps between tiles, in both directions, and most keys count for nothing.
TEST(DenseAttend, SharpSoftmax) {
  Random random(2);
  const int keys = 200;
  for (int loudest : {0, 100, 199}) {
    std::vector<bf16> latent = random.bf16s(keys * kLatent);
    const std::vector<bf16> query = random.bf16s(kHeads * kLatent, 4.0f);
    for (int d = 0; d < kLatent; ++d) latent[loudest * kLatent + d] = query[d];
    EXPECT_LT(error_of(Sequence(latent), query, 1, {.attention_lanes = 2, .dense_segment = 64}), test::kBf16);
  }
}

TEST(SparseAttend, SelectedPositions) {
  Random random(3);
  const int keys = 700, rows = 3;
  const Sequence seq(random.bf16s(keys * kLatent));
  const std::vector<bf16> query = random.bf16s(rows * kHeads * kLatent, 1.5f);
  for (int size : {1, 5, 64, 65, 500}) {
    std::vector<std::vector<int32_t>> chosen(rows);
    for (auto& c : chosen) {
      std::vector<int32_t> all(keys - rows + 1);
      std::iota(all.begin(), all.end(), 0);
      for (int i = 0; i < size; ++i)
        std::swap(all[i], all[i + random.below(static_cast<int>(all.size()) - i)]);
      c.assign(all.begin(), all.begin() + size);
      std::sort(c.begin(), c.end());
    }
    for (int lanes : {1, 4}) {
      EXPECT_LT(error_of(seq, query, rows, {.attention_lanes = lanes, .sparse = true}, chosen), test::kBf16)
          << size << " keys, " << lanes << " lanes";
    }
  }
}

TEST(SparseAttend, EveryLatentFormat) {
  Random random(4);
  const std::vector<bf16> latent = random.bf16s(90 * kLatent), query = random.bf16s(kHeads * kLatent, 1.5f);
  for (LatentFormat format : {LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kNvfp4}) {
    const Sequence seq(latent, format, format == LatentFormat::kBf16 ? 1.0f : 0.01f);
    EXPECT_LT(error_of(seq, query, 1, {.sparse = true}, {{0, 7, 8, 63, 64, 89}}), test::kBf16)
        << latent_format_name(format);
  }
}

TEST(Attend, OracleVectors) {
  const test::Vectors v("attend");
  const std::vector<bf16> query = v.bf16s("query");
  const Sequence seq(v.bf16s("latent"));
  const MlaConfig config{.num_heads = 2};
  const SequenceRows sequence{.first_row = 0, .rows = 1, .start = 5, .accepted = 6};
  const std::vector<int32_t> selected = v.read<int32_t>("selected"), count = {3};
  for (bool sparse : {false, true}) {
    std::vector<bf16> out(2 * kRank);
    cpu::PlainBackend backend(1);
    const AttendArgs args{.config = config,
                          .query = query.data(),
                          .sequences = std::span(&sequence, 1),
                          .pages = std::span(&seq.pages, 1),
                          .selected = selected.data(),
                          .count = count.data(),
                          .top_k = 4,
                          .attention_lanes = 1,
                          .dense_segment = 4096,
                          .out = out.data()};
    sparse ? backend.sparse_attend(args) : backend.dense_attend(args);
    EXPECT_LT(test::relative_l2(out, v.doubles(sparse ? "out_sparse" : "out_dense")), test::kBf16);
  }
}

}  // namespace
}  // namespace perigee
