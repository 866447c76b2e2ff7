// The fast forms of the stages without weights give the bits of the plain ones: random shapes, tails,
// threads, cache formats and attention lanes, with ties, NaN and zeros of both signs among the inputs.
#include <algorithm>
#include <limits>
#include <numeric>

#include "cache/sequence_cache.h"
#include "ops/cpu/fast/top_k.h"
#include "ops/fast_backends.h"
#include "ops/reference.h"

namespace perigee {
namespace {

using test::fast_backends, test::FastCase, test::Random, test::same_bits;

constexpr int kLatent = 576, kRank = 512, kIndex = 128;
constexpr LatentFormat kLatentFormats[] = {LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kNvfp4};
constexpr IndexKeyFormat kIndexFormats[] = {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8,
                                            IndexKeyFormat::kMxfp4};

// Sequences of one step, one behind the other, with an MLA layer's cache each.
struct Step {
  std::vector<SequenceCache> caches;
  std::vector<SequenceRows> sequences;
  std::vector<PageTable> pages;
  int rows = 0;

  // lengths[s] tokens each, of which the last rows[s] belong to the step.
  Step(const std::vector<int>& lengths, const std::vector<int>& step_rows, const CacheShape& shape) {
    for (size_t s = 0; s < lengths.size(); ++s) {
      caches.emplace_back(shape).reserve(lengths[s]);
      sequences.push_back({.first_row = rows,
                           .rows = step_rows[s],
                           .start = lengths[s] - step_rows[s],
                           .accepted = lengths[s]});
      rows += step_rows[s];
    }
    for (SequenceCache& c : caches) pages.push_back(c.pages(0));
  }
};

std::vector<int> random_lengths(Random& random, int sequences, int longest) {
  std::vector<int> out(sequences);
  for (int& n : out) n = 1 + random.below(longest);
  return out;
}
std::vector<int> random_rows(Random& random, const std::vector<int>& lengths, int most) {
  std::vector<int> out;
  for (int n : lengths) out.push_back(1 + random.below(std::min(n, most)));
  return out;
}

// --- index_select

struct Selection {
  std::vector<int32_t> selected, count;
};

struct IndexCase {
  DsaConfig config;
  Step step;
  std::vector<bf16> query;
  std::vector<float> weight;

  // `levels` > 0: keys of so many kinds only, so that scores tie.
  IndexCase(Random& random, IndexKeyFormat format, const std::vector<int>& lengths,
            const std::vector<int>& rows, int heads, int top_k, int levels)
      : config{.num_heads = heads, .top_k = top_k, .layers = {0}},
        step(lengths, rows, CacheShape{.attention_has_index = {true}, .index_format = format}),
        query(random.bf16s(int64_t{step.rows} * heads * kIndex)),
        weight(random.floats(int64_t{step.rows} * heads, 0.3f, 0.1f)) {
    const std::vector<float> kinds = random.floats(std::max(levels, 1) * kIndex);
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (int p = 0; p < lengths[s]; ++p) {
        std::vector<float> key = random.floats(kIndex, std::exp2(static_cast<float>(random.below(20) - 10)));
        if (levels > 0) std::copy_n(&kinds[random.below(levels) * kIndex], kIndex, key.begin());
        if (random.below(40) == 0) key[random.below(kIndex)] = std::numeric_limits<float>::quiet_NaN();
        if (random.below(40) == 0) std::fill(key.begin(), key.end(), random.below(2) ? 0.0f : -0.0f);
        uint8_t* page = step.pages[s].index_key(p / kPageTokens);
        encode_index_key(format, key.data(), page + index_value_offset(format, p % kPageTokens),
                         page + index_scale_offset(format, p % kPageTokens));
      }
    }
  }

  Selection run(Backend& backend) const {
    Selection out{std::vector<int32_t>(int64_t{step.rows} * config.top_k, -7),
                  std::vector<int32_t>(step.rows, -7)};
    backend.index_select({.config = config,
                          .index_query = query.data(),
                          .index_weight = weight.data(),
                          .sequences = step.sequences,
                          .pages = step.pages,
                          .selected = out.selected.data(),
                          .count = out.count.data()});
    return out;
  }
};

void expect_same_selection(const IndexCase& c, Backend& fast, const std::string& what) {
  cpu::PlainBackend plain(2);
  const Selection want = c.run(plain), got = c.run(fast);
  EXPECT_TRUE(same_bits(got.selected, want.selected)) << what;
  EXPECT_TRUE(same_bits(got.count, want.count)) << what;
}

TEST(FastIndexSelect, RandomCases) {
  for (int threads : {1, 2, 3}) {
    for (const FastCase& fast : fast_backends(threads)) {
      Random random(threads);
      for (int i = 0; i < (fast.slow ? 12 : 60); ++i) {
        const std::vector<int> lengths = random_lengths(random, 1 + random.below(3), i % 4 ? 200 : 700);
        const std::vector<int> rows = random_rows(random, lengths, i % 3 ? 4 : 90);
        const int heads = 1 + random.below(9), top_k = 1 + random.below(150), levels = random.below(5);
        const IndexCase c(random, kIndexFormats[i % 3], lengths, rows, heads, top_k, levels);
        expect_same_selection(c, *fast.backend, fast.name + " case " + std::to_string(i));
      }
    }
  }
}

// Every code of every byte of a page, NaN codes and scales among them.
TEST(FastIndexSelect, AnyBytesInThePages) {
  for (const FastCase& fast : fast_backends(2)) {
    Random random(11);
    for (IndexKeyFormat format : kIndexFormats) {
      IndexCase c(random, format, {300}, {3}, 5, 40, 0);
      for (int page = 0; page < 5; ++page) {
        uint8_t* bytes = c.step.pages[0].index_key(page);
        for (int i = 0; i < index_page_bytes(format); ++i) {
          const bool scale = i >= kPageTokens * index_key_value_bytes(format);
          // Most scales of ordinary size, so that scores are numbers often enough to be told apart.
          if (!scale || random.below(8) == 0) bytes[i] = static_cast<uint8_t>(random.below(256));
        }
      }
      expect_same_selection(c, *fast.backend, fast.name + " " + std::string(index_key_format_name(format)));
    }
  }
}

// The rule word by word: the largest, the earlier of equal ones first, listed in ascending position.
void expect_top(const std::vector<uint16_t>& key, int kept, const std::string& what) {
  std::vector<int32_t> want(key.size()), got(kept);
  std::iota(want.begin(), want.end(), 0);
  std::stable_sort(want.begin(), want.end(), [&](int a, int b) { return key[a] > key[b]; });
  want.resize(kept);
  std::sort(want.begin(), want.end());
  cpu::select_top(key.data(), static_cast<int64_t>(key.size()), kept, got.data());
  EXPECT_EQ(got, want) << key.size() << " keys, " << kept << " kept, " << what;
}

TEST(FastIndexSelect, ThresholdsOfTheRadixSelect) {
  Random random(12);
  for (int i = 0; i < 400; ++i) {
    const int n = 1 + random.below(3000), kept = 1 + random.below(n);
    const int values = 1 + random.below(i % 2 ? 5 : 65536), base = random.below(65536 - values + 1);
    std::vector<uint16_t> key(n);
    for (uint16_t& k : key) k = static_cast<uint16_t>(base + random.below(values));
    expect_top(key, kept, std::to_string(values) + " values");
  }
}

// Few of many: a sample bounds the keys that are looked at. Large keys of one period lie in every sampled
// place or in none, so that the bound is far too high or too low.
TEST(FastIndexSelect, FewOfManyKeys) {
  Random random(13);
  for (int i = 0; i < 300; ++i) {
    const int n = 1024 + random.below(20000), kept = 1 + random.below(n / 8);
    const int values = 1 + random.below(i % 2 ? 40 : 30000), period = 1 + random.below(40),
              phase = random.below(period);
    std::vector<uint16_t> key(n);
    for (int p = 0; p < n; ++p)
      key[p] = static_cast<uint16_t>(random.below(values) + (i % 3 && p % period == phase ? 30000 : 0));
    if (i % 5 == 0) std::sort(key.begin(), key.end());
    expect_top(key, kept, std::to_string(values) + " values, period " + std::to_string(period));
  }
  for (int phase : {0, 7}) {
    std::vector<uint16_t> key(8000);
    for (int p = 0; p < 8000; ++p) key[p] = static_cast<uint16_t>(p % 15 == phase ? 60000 - p : p);
    for (int kept : {1, 100, 533, 534, 600, 1000}) expect_top(key, kept, "phase " + std::to_string(phase));
  }
}

// --- sparse_attend, dense_attend

struct AttendCase {
  MlaConfig config;
  Step step;
  int top_k;
  std::vector<bf16> query;
  std::vector<int32_t> selected, count;

  AttendCase(Random& random, LatentFormat format, const std::vector<int>& lengths,
             const std::vector<int>& rows, int heads, int top_k)
      : config{.num_heads = heads},
        step(lengths, rows,
             CacheShape{.attention_has_index = {false},
                        .latent_format = format,
                        .latent_scale = format == LatentFormat::kBf16 ? 1.0f : 0.013f}),
        top_k(top_k),
        query(random.bf16s(int64_t{step.rows} * heads * kLatent, 1.5f)) {
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (int p = 0; p < lengths[s]; ++p) {
        std::vector<float> x = random.floats(kLatent);
        if (random.below(300) == 0) x[random.below(kLatent)] = std::numeric_limits<float>::quiet_NaN();
        const PageTable& pages = step.pages[s];
        encode_latent(format, x.data(), pages.latent_scale,
                      pages.latent(p / kPageTokens) + p % kPageTokens * latent_bytes(format));
      }
    }
    for (const SequenceRows& seq : step.sequences) {
      for (int i = 0; i < seq.rows; ++i) {
        const int visible = static_cast<int>(seq.start) + i + 1;
        std::vector<int32_t> all(visible);
        std::iota(all.begin(), all.end(), 0);
        for (int j = 0; j < visible; ++j) std::swap(all[j], all[j + random.below(visible - j)]);
        all.resize(1 + random.below(std::min(visible, top_k)));
        std::sort(all.begin(), all.end());
        count.push_back(static_cast<int32_t>(all.size()));
        all.resize(top_k, -1);
        selected.insert(selected.end(), all.begin(), all.end());
      }
    }
  }

  std::vector<bf16> run(Backend& backend, bool sparse, int lanes, int segment) const {
    std::vector<bf16> out(int64_t{step.rows} * config.num_heads * kRank, 0x1234);
    const AttendArgs args{.config = config,
                          .query = query.data(),
                          .sequences = step.sequences,
                          .pages = step.pages,
                          .selected = selected.data(),
                          .count = count.data(),
                          .top_k = top_k,
                          .attention_lanes = lanes,
                          .dense_segment = segment,
                          .out = out.data()};
    sparse ? backend.sparse_attend(args) : backend.dense_attend(args);
    return out;
  }
};

TEST(FastAttend, RandomCases) {
  for (int threads : {1, 2, 3}) {
    for (const FastCase& fast : fast_backends(threads)) {
      cpu::PlainBackend plain(2);
      Random random(20 + threads);
      for (int i = 0; i < (fast.slow ? 9 : 36); ++i) {
        const std::vector<int> lengths = random_lengths(random, 1 + random.below(3), 300);
        const std::vector<int> rows = random_rows(random, lengths, i % 2 ? 3 : 12);
        const AttendCase c(random, kLatentFormats[i % 3], lengths, rows, 1 + random.below(i % 4 ? 9 : 19),
                           130);
        const int lanes = 1 << random.below(5), segment = 30 + random.below(200);
        for (bool sparse : {false, true}) {
          EXPECT_TRUE(
              same_bits(c.run(*fast.backend, sparse, lanes, segment), c.run(plain, sparse, lanes, segment)))
              << fast.name << (sparse ? " sparse" : " dense") << " case " << i << ", " << lanes << " lanes";
        }
      }
    }
  }
}

// Records of any bytes: every code of the formats, with and without NaN, and logits far apart.
TEST(FastAttend, AnyBytesInThePages) {
  for (const FastCase& fast : fast_backends(2)) {
    cpu::PlainBackend plain(2);
    Random random(31);
    for (LatentFormat format : {LatentFormat::kFp8, LatentFormat::kNvfp4}) {
      for (int rows : {1, 20}) {
        AttendCase c(random, format, {150}, {rows}, 3, 60);
        for (int p = 0; p < 150; ++p) {
          uint8_t* record = c.step.pages[0].latent(p / kPageTokens) + p % kPageTokens * latent_bytes(format);
          for (int i = 0; i < latent_bytes(format); ++i) {
            const int byte = random.below(256);
            record[i] = static_cast<uint8_t>((byte & 0x7F) == 0x7F && random.below(1000) ? 0 : byte);
          }
        }
        for (bool sparse : {false, true}) {
          EXPECT_TRUE(same_bits(c.run(*fast.backend, sparse, 2, 64), c.run(plain, sparse, 2, 64)))
              << fast.name << (sparse ? " sparse " : " dense ") << latent_format_name(format) << ", " << rows;
        }
      }
    }
  }
}

// --- kda_conv_norm_gate, kda_chunk

// A KDA layer fed step by step; what the stages wrote, and the slot, of one backend.
struct KdaRun {
  Backend& backend;
  SequenceCache cache;
  std::vector<bf16> q, k, v;
  std::vector<float> out;

  KdaRun(Backend& backend, int heads)
      : backend(backend), cache(CacheShape{.attention_has_index = {}, .kda_layers = 1, .kda_heads = heads}) {}
};

struct KdaInputs {
  KdaConfig config;
  std::vector<float> taps, g, beta;
  std::vector<bf16> conv_input;

  KdaInputs(Random& random, int tokens, int heads)
      : taps(random.floats(int64_t{3} * heads * 128 * 4, 0.5f)),
        g(int64_t{tokens} * heads * 128),
        beta(int64_t{tokens} * heads),
        conv_input(random.bf16s(int64_t{tokens} * 3 * heads * 128)) {
    config.num_heads = heads;
    for (float& x : g) x = -std::exp(random.normal(3.0f, -2.0f));
    for (float& x : beta) x = 1.0f / (1.0f + std::exp(random.normal(2.0f)));
  }

  void step(KdaRun& run, int start, int rows, int accepted) const {
    const int64_t D = int64_t{config.num_heads} * 128, n = rows * D;
    const KdaSlot slot = run.cache.slot(0);
    // Behind another sequence's row, so that rows of the step and of the sequence differ.
    const SequenceRows sequence{.first_row = 1, .rows = rows, .start = start, .accepted = accepted};
    const std::span sequences(&sequence, 1);
    const std::span slots(&slot, 1);
    std::vector<bf16> in(3 * D);
    in.insert(in.end(), conv_input.begin() + start * 3 * D, conv_input.begin() + (start + rows) * 3 * D);
    std::vector<float> decay(D, -1.0f), rate(config.num_heads, 0.5f);
    decay.insert(decay.end(), g.begin() + start * D, g.begin() + (start + rows) * D);
    rate.insert(rate.end(), beta.begin() + int64_t{start} * config.num_heads,
                beta.begin() + int64_t{start + rows} * config.num_heads);
    KdaWeights w;
    w.conv_q = taps.data(), w.conv_k = taps.data() + D * 4, w.conv_v = taps.data() + 2 * D * 4;
    for (auto* x : {&run.q, &run.k, &run.v}) x->assign(n + D, 0x1234);
    run.out.assign(n + D, 7.0f);
    run.backend.kda_conv_norm_gate({.weights = w,
                                    .config = config,
                                    .sequences = sequences,
                                    .slots = slots,
                                    .conv_input = in.data(),
                                    .q = run.q.data(),
                                    .k = run.k.data(),
                                    .v = run.v.data()});
    run.backend.kda_chunk({.config = config,
                           .sequences = sequences,
                           .slots = slots,
                           .conv_input = in.data(),
                           .q = run.q.data(),
                           .k = run.k.data(),
                           .v = run.v.data(),
                           .g = decay.data(),
                           .beta = rate.data(),
                           .out = run.out.data()});
    run.cache.set_length(start + rows);
  }
};

template <typename T>
std::vector<T> copied(const T* p, int64_t count) {
  return {p, p + count};
}

void expect_same_kda(KdaRun& got, KdaRun& want, int heads, const std::string& what) {
  ASSERT_TRUE(same_bits(got.q, want.q)) << what;
  ASSERT_TRUE(same_bits(got.k, want.k)) << what;
  ASSERT_TRUE(same_bits(got.v, want.v)) << what;
  ASSERT_TRUE(same_bits(got.out, want.out)) << what;
  const KdaSlot a = got.cache.slot(0), b = want.cache.slot(0);
  const int64_t D = int64_t{heads} * 128, kept = KdaSlot::kRing * D;
  ASSERT_EQ(*a.base, *b.base) << what;
  for (int h = 0; h < heads; ++h) {
    ASSERT_TRUE(same_bits(copied(a.state + h * a.state_stride, 128 * 128),
                          copied(b.state + h * b.state_stride, 128 * 128)))
        << what << ", S of head " << h;
  }
  ASSERT_TRUE(same_bits(copied(a.conv_input, 3 * kept), copied(b.conv_input, 3 * kept)))
      << what << ", conv inputs";
  ASSERT_TRUE(same_bits(copied(a.k, kept), copied(b.k, kept))) << what << ", k";
  ASSERT_TRUE(same_bits(copied(a.G, kept), copied(b.G, kept))) << what << ", G";
  ASSERT_TRUE(same_bits(copied(a.w, kept), copied(b.w, kept))) << what << ", w";
  const int64_t T = KdaSlot::kRing * heads * kChunk;
  ASSERT_TRUE(same_bits(copied(a.T, T), copied(b.T, T))) << what << ", T";
}

// Prefill, decode and verification with rejected drafts, step by step.
TEST(FastKda, RandomSteps) {
  for (int threads : {1, 3}) {
    for (const FastCase& fast : fast_backends(threads)) {
      cpu::PlainBackend plain(2);
      for (int heads : {1, 3}) {
        Random random(40 + heads);
        const int tokens = fast.slow ? 90 : 400;
        const KdaInputs x(random, tokens + 40, heads), wrong(random, tokens + 40, heads);
        KdaRun got(*fast.backend, heads), want(plain, heads);
        for (int at = 0; at < tokens;) {
          const int longest = random.below(3) == 0 ? 40 : 6;
          const int rows = 1 + random.below(longest);
          const std::string what =
              fast.name + " rows " + std::to_string(rows) + " from " + std::to_string(at);
          if (rows <= 8 && random.below(2)) {  // drafts that are all rejected
            for (KdaRun* run : {&got, &want}) wrong.step(*run, at, rows, at);
            expect_same_kda(got, want, heads, what + " drafted");
            for (KdaRun* run : {&got, &want}) run->cache.set_length(at);
          }
          // Some of the rows may still be dropped, but are not.
          const int accepted = at + (rows <= 8 ? random.below(rows + 1) : rows);
          for (KdaRun* run : {&got, &want}) x.step(*run, at, rows, accepted);
          expect_same_kda(got, want, heads, what);
          if (testing::Test::HasFatalFailure()) return;
          at += rows;
        }
      }
    }
  }
}

// Decays of minus infinity and NaN in the inputs reach what the plain code lets them reach.
TEST(FastKda, WhatIsNoNumber) {
  for (const FastCase& fast : fast_backends(2)) {
    cpu::PlainBackend plain(2);
    Random random(50);
    KdaInputs x(random, 60, 2);
    x.g[7 * 256 + 3] = -std::numeric_limits<float>::infinity();
    x.conv_input[(21 * 3 + 1) * 256 + 9] = 0x7FC0;
    x.beta[35 * 2 + 1] = std::numeric_limits<float>::infinity();
    KdaRun got(*fast.backend, 2), want(plain, 2);
    for (int at = 0; at < 60; at += 5) {
      for (KdaRun* run : {&got, &want}) x.step(*run, at, 5, at + 5);
      expect_same_kda(got, want, 2, fast.name + " at " + std::to_string(at));
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// --- attn_res_mix, lane_reduce

TEST(FastResidual, AttnResMix) {
  for (const FastCase& fast : fast_backends(3)) {
    cpu::PlainBackend plain(2);
    Random random(60);
    for (int sources : {1, 2, 5, 9}) {
      for (int hidden : {16, 80, 1024}) {
        const int rows = 1 + random.below(5);
        std::vector<std::vector<bf16>> banks;
        std::vector<const bf16*> pointers;
        for (int j = 1; j < sources; ++j) banks.push_back(random.bf16s(int64_t{rows} * hidden, 1.0f, 0.1f));
        for (const auto& b : banks) pointers.push_back(b.data());
        const std::vector<bf16> stream = random.bf16s(int64_t{rows} * hidden);
        const std::vector<float> score = random.floats(hidden, 0.1f),
                                 norm = random.floats(hidden, 0.2f, 1.0f);
        std::vector<bf16> out[2] = {std::vector<bf16>(stream.size()), std::vector<bf16>(stream.size())};
        Backend* backends[2] = {fast.backend.get(), &plain};
        for (int b = 0; b < 2; ++b) {
          backends[b]->attn_res_mix({.stream = stream.data(),
                                     .banks = pointers,
                                     .score = score.data(),
                                     .norm = norm.data(),
                                     .eps = 1e-5f,
                                     .out = out[b].data(),
                                     .rows = rows,
                                     .hidden = hidden});
        }
        EXPECT_TRUE(same_bits(out[0], out[1])) << fast.name << ", " << sources << " sources of " << hidden;
      }
    }
  }
}

TEST(FastResidual, LaneReduce) {
  for (const FastCase& fast : fast_backends(3)) {
    cpu::PlainBackend plain(2);
    Random random(70);
    for (int lanes : {1, 2, 4, 8, 16, 32}) {
      for (int hidden : {16, 24, 1024}) {
        for (bool restart : {true, false}) {
          const int rows = 1 + random.below(5);
          const std::vector<float> partial = random.floats(int64_t{lanes} * rows * hidden);
          const std::vector<bf16> before = random.bf16s(int64_t{rows} * hidden);
          std::vector<bf16> stream[2] = {before, before};
          Backend* backends[2] = {fast.backend.get(), &plain};
          for (int b = 0; b < 2; ++b) {
            backends[b]->lane_reduce({.partial = partial.data(),
                                      .stream = stream[b].data(),
                                      .restart = restart,
                                      .lanes = lanes,
                                      .rows = rows,
                                      .hidden = hidden});
          }
          EXPECT_TRUE(same_bits(stream[0], stream[1]))
              << fast.name << ", " << lanes << " lanes of " << hidden;
        }
      }
    }
  }
}

// --- sample

TEST(FastSample, RandomCases) {
  for (const FastCase& fast : fast_backends(3)) {
    cpu::PlainBackend plain(2);
    Random random(80);
    for (int i = 0; i < (fast.slow ? 20 : 100); ++i) {
      const int vocab = 1 + random.below(i % 5 ? 300 : 5000), rows = 1 + random.below(5);
      std::vector<float> logits = random.floats(int64_t{rows} * vocab, i % 3 ? 3.0f : 0.5f);
      for (float& x : logits) {
        if (i % 2) x = std::round(x);  // ties, and zeros of both signs
        if (random.below(500) == 0) x = std::numeric_limits<float>::quiet_NaN();
        if (random.below(100) == 0) x = -std::numeric_limits<float>::infinity();
        if (i % 10 == 9 && random.below(500) == 0) x = std::numeric_limits<float>::infinity();
        if (random.below(100) == 0) x = random.below(2) ? 1e-39f : -1e-39f;
      }
      std::vector<SampleRow> sample_rows;
      std::vector<float> processed(logits.rbegin(), logits.rbegin() + vocab);
      for (int r = 0; r < rows; ++r) {
        const float temperatures[] = {0.0f, 0.5f, 1.0f, 1.7f};
        const SampleParams params{
            .temperature = temperatures[random.below(4)],
            .top_p = random.below(2) ? 1.0f : 0.05f + 0.3f * static_cast<float>(random.below(4)),
            .top_k = random.below(2) ? 0 : 1 + random.below(vocab + 3),
            .seed = static_cast<uint64_t>(random.below(1 << 30)) << 20 | 5};
        sample_rows.push_back({.params = params,
                               .position = (int64_t{random.below(1000)} << 31) + random.below(1000),
                               .processed = random.below(3) ? nullptr : processed.data()});
      }
      const int lanes = 1 << random.below(6);
      std::vector<Drawn> drawn[2] = {std::vector<Drawn>(rows), std::vector<Drawn>(rows)};
      Backend* backends[2] = {fast.backend.get(), &plain};
      for (int b = 0; b < 2; ++b) {
        backends[b]->sample({.logits = logits.data(),
                             .rows = sample_rows.data(),
                             .drawn = drawn[b].data(),
                             .count = rows,
                             .vocab = vocab,
                             .lanes = lanes});
      }
      const auto same = [&](auto Drawn::* member) {
        const auto all = [&](const std::vector<Drawn>& from) {
          std::vector<std::remove_cvref_t<decltype(from[0].*member)>> out;
          for (const Drawn& d : from) out.push_back(d.*member);
          return out;
        };
        EXPECT_TRUE(same_bits(all(drawn[0]), all(drawn[1])))
            << fast.name << " case " << i << ", " << vocab << " tokens";
      };
      same(&Drawn::token);
      same(&Drawn::logit);
      same(&Drawn::log_norm);
    }
  }
}

}  // namespace
}  // namespace perigee
