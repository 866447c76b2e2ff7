// LogitsProcessor: every rule against its definition in fp64, their order, and what is refused.
#include "engine/logits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"
#include "base/philox.h"
#include "ops/cpu/backend.h"

namespace perigee {
namespace {

constexpr int kVocab = 24;
constexpr float kOut = -std::numeric_limits<float>::infinity();

std::vector<float> random_logits(uint64_t seed) {
  std::vector<float> z(kVocab);
  for (int v = 0; v < kVocab; ++v) z[v] = static_cast<int32_t>(random_words(seed, 9, v, 0)[0]) * 0x1p-29f;
  return z;
}

std::vector<float> applied(const LogitsParams& p, const std::vector<int32_t>& prompt,
                           const std::vector<int32_t>& answer, std::vector<float> z, float temperature = 1,
                           const std::vector<int32_t>& stops = {}) {
  LogitsProcessor processor(p, stops, prompt);
  for (int32_t t : answer) processor.accept(t);
  processor.apply(z, temperature);
  return z;
}

TEST(Logits, WithoutParametersNothingChanges) {
  EXPECT_FALSE(LogitsProcessor({}, {3}, std::vector<int32_t>{1, 2}).active());
  EXPECT_EQ(applied({}, {1, 2}, {3, 4, 3}, random_logits(1)), random_logits(1));
}

TEST(Logits, PenaltiesAreTheirDefinitions) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<int32_t> prompt, answer;
    for (int i = 0; i < 6; ++i) prompt.push_back(random_words(seed, 1, i, 0)[0] % kVocab);
    for (int i = 0; i < 9; ++i) answer.push_back(random_words(seed, 2, i, 0)[0] % kVocab);
    const LogitsParams p{.repetition_penalty = 1.25f, .frequency_penalty = 0.5f, .presence_penalty = -0.75f};
    const std::vector<float> z = random_logits(seed), got = applied(p, prompt, answer, z);
    std::map<int32_t, int> count;
    for (int32_t t : answer) ++count[t];
    std::set<int32_t> seen(prompt.begin(), prompt.end());
    seen.insert(answer.begin(), answer.end());
    for (int v = 0; v < kVocab; ++v) {
      double want = z[v];
      if (seen.contains(v)) want = want > 0 ? want / 1.25 : want * 1.25;
      if (count.contains(v)) want -= 0.5 * count[v] - 0.75;
      EXPECT_NEAR(got[v], want, 1e-5) << "token " << v;
    }
  }
}

TEST(Logits, BiasAllowedIdsAndMinimumLength) {
  const std::vector<float> z = random_logits(3);
  const std::vector<float> got =
      applied({.logit_bias = {{4, 2.5f}, {7, -100.0f}}, .allowed_ids = {4, 5, 7}, .min_tokens = 2}, {}, {9},
              z, 1, {5});
  for (int v = 0; v < kVocab; ++v) {
    const float want = v == 4 ? z[4] + 2.5f : v == 7 ? z[7] - 100.0f : kOut;  // 5 is a stop id and too early
    EXPECT_EQ(got[v], want) << "token " << v;
  }
  EXPECT_EQ(applied({.min_tokens = 2}, {}, {9, 9}, z, 1, {5}), z);
}

TEST(Logits, BadWordsLoseTheirLastToken) {
  const std::vector<float> z = random_logits(4);
  const LogitsParams p{.bad_words = {{1, 2, 3}, {6}, {9, 9}}};
  const auto out = [&](const std::vector<int32_t>& answer) {
    std::set<int> ids;
    const std::vector<float> got = applied(p, {1, 2}, answer, z);
    for (int v = 0; v < kVocab; ++v) {
      if (got[v] == kOut) ids.insert(v);
    }
    return ids;
  };
  EXPECT_EQ(out({}), std::set<int>{6});  // the prompt is not the answer
  EXPECT_EQ(out({1, 2}), (std::set<int>{3, 6}));
  EXPECT_EQ(out({1, 2, 3}), std::set<int>{6});
  EXPECT_EQ(out({0, 9}), (std::set<int>{6, 9}));
}

TEST(Logits, MinPKeepsWhatItsDefinitionKeeps) {
  for (float temperature : {0.5f, 1.0f, 1.7f}) {
    const std::vector<float> z = random_logits(5);
    const std::vector<float> got = applied({.min_p = 0.1f}, {}, {}, z, temperature);
    const double top = *std::max_element(z.begin(), z.end());
    int kept = 0;
    for (int v = 0; v < kVocab; ++v) {
      const double ratio = std::exp((z[v] - top) / temperature);
      ASSERT_GT(std::fabs(ratio - 0.1), 1e-4) << "too near for the test";
      EXPECT_EQ(got[v], ratio >= 0.1 ? z[v] : kOut);
      kept += ratio >= 0.1;
    }
    EXPECT_GT(kept, 1);
    EXPECT_LT(kept, kVocab);
  }
}

// Penalties, bias and min-p together, drawn 20,000 times: Pearson's statistic against the exact distribution.
TEST(Logits, DrawsFollowTheExactDistribution) {
  constexpr int kCount = 20000;
  const LogitsParams p{.repetition_penalty = 1.3f,
                       .frequency_penalty = 0.3f,
                       .presence_penalty = 0.2f,
                       .min_p = 0.05f,
                       .logit_bias = {{2, 1.0f}}};
  const float temperature = 1.4f;
  const std::vector<float> z = random_logits(6);
  const std::vector<float> processed = applied(p, {1, 5}, {3, 3, 8}, z, temperature);
  std::vector<double> want(kVocab);
  double top = -1e9, total = 0;
  for (int v = 0; v < kVocab; ++v) {
    want[v] = z[v] + (v == 2 ? 1.0 : 0.0);
    const bool seen = v == 1 || v == 5 || v == 3 || v == 8;
    if (seen) want[v] = want[v] > 0 ? want[v] / double{1.3f} : want[v] * double{1.3f};
    if (v == 3) want[v] -= 2 * double{0.3f} + double{0.2f};
    if (v == 8) want[v] -= double{0.3f} + double{0.2f};
    top = std::max(top, want[v]);
  }
  for (double& x : want) {
    x = std::exp((x - top) / double{temperature});
    if (x < 0.05) x = 0;
    total += x;
  }
  std::vector<float> all;
  for (int i = 0; i < kCount; ++i) all.insert(all.end(), processed.begin(), processed.end());
  std::vector<SampleRow> rows;
  for (int i = 0; i < kCount; ++i)
    rows.push_back({.params = {.temperature = temperature, .seed = 11}, .position = i});
  std::vector<Drawn> drawn(kCount);
  cpu::PlainBackend(1).sample({.logits = all.data(),
                               .rows = rows.data(),
                               .drawn = drawn.data(),
                               .count = kCount,
                               .vocab = kVocab,
                               .lanes = 1});
  std::vector<int> hits(kVocab);
  for (const Drawn& d : drawn) ++hits[d.token];
  double statistic = 0;
  int kinds = 0;
  for (int v = 0; v < kVocab; ++v) {
    const double expected = want[v] / total * kCount;
    if (expected == 0) {
      EXPECT_EQ(hits[v], 0) << "token " << v << " was cut";
      continue;
    }
    ASSERT_GT(expected, 5) << "too rare for the test";
    statistic += std::pow(hits[v] - expected, 2) / expected;
    ++kinds;
  }
  const double k = kinds - 1;
  EXPECT_LT(statistic, k * std::pow(1 - 2 / (9 * k) + 3.72 * std::sqrt(2 / (9 * k)), 3)) << kinds << " kept";
}

std::string error_of(const LogitsParams& p) {
  try {
    check_logits_params(p, kVocab);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kBadRequest);
    return e.what();
  }
  return "";
}

TEST(Logits, RefusalsNameTheField) {
  EXPECT_EQ(error_of({}), "");
  const std::pair<LogitsParams, const char*> cases[] = {
      {{.repetition_penalty = 0}, "repetition_penalty 0"},
      {{.frequency_penalty = 2.5f}, "frequency_penalty 2.5"},
      {{.presence_penalty = std::nanf("")}, "presence_penalty nan"},
      {{.min_p = -0.1f}, "min_p -0.1"},
      {{.logit_bias = {{kVocab, 1}}}, "logit_bias"},
      {{.logit_bias = {{0, 101}}}, "logit_bias 101"},
      {{.allowed_ids = {-1}}, "allowed_token_ids"},
      {{.bad_words = {{}}}, "bad_words"},
      {{.min_tokens = -1}, "min_tokens -1"},
  };
  for (const auto& [params, expected] : cases) {
    EXPECT_NE(error_of(params).find(expected), std::string::npos) << error_of(params);
  }
}

}  // namespace
}  // namespace perigee
