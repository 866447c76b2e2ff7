// sample: its distribution by chi-square tests with fixed seeds, its normaliser, its ties, and what is no
// number.
#include <cstring>
#include <limits>
#include <numeric>

#include "ops/reference.h"

namespace perigee {
namespace {

using test::Doubles, test::Random;

struct Samples {
  std::vector<int32_t> tokens;
  std::vector<float> log_norm;
};

// `count` samples of the same logits at positions 0, 1, ….
Samples draw(const std::vector<float>& logits, const SampleParams& params, int count, int lanes = 1) {
  std::vector<float> all;
  for (int i = 0; i < count; ++i) all.insert(all.end(), logits.begin(), logits.end());
  std::vector<SampleRow> rows;
  for (int i = 0; i < count; ++i) rows.push_back({.params = params, .position = i});
  std::vector<Drawn> drawn(count);
  cpu::PlainBackend(2).sample({.logits = all.data(),
                               .rows = rows.data(),
                               .drawn = drawn.data(),
                               .count = count,
                               .vocab = static_cast<int>(logits.size()),
                               .lanes = lanes});
  Samples out;
  for (const Drawn& d : drawn) {
    EXPECT_EQ(std::memcmp(&d.logit, &logits[d.token], sizeof(float)), 0);
    out.tokens.push_back(d.token);
    out.log_norm.push_back(d.log_norm);
  }
  return out;
}

// The exact distribution: softmax(logits / temperature) over the tokens kept, in fp64.
Doubles distribution(const std::vector<float>& logits, const SampleParams& p) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  Doubles q(logits.size());
  const size_t by_rank = p.top_k > 0 ? std::min<size_t>(p.top_k, q.size()) : q.size();
  double total = 0;
  for (size_t i = 0; i < by_rank; ++i)
    total += q[order[i]] = std::exp((logits[order[i]] - logits[order[0]]) / double{p.temperature});
  double reached = 0, kept = 0;
  for (size_t i = 0; i < by_rank; ++i) {
    const bool keep = p.top_p >= 1 || reached < p.top_p * total;
    reached += q[order[i]];
    kept += keep ? q[order[i]] : 0;
    if (!keep) q[order[i]] = 0;
  }
  for (double& x : q) x /= kept;
  return q;
}

// Pearson's statistic against its 99.99 % quantile (Wilson and Hilferty's approximation).
void expect_distribution(const std::vector<float>& logits, const SampleParams& params) {
  constexpr int kCount = 20000;
  const Samples got = draw(logits, params, kCount);
  const Doubles want = distribution(logits, params);
  std::vector<int> hits(logits.size());
  for (int32_t t : got.tokens) ++hits[t];
  double statistic = 0;
  int kinds = 0;
  for (size_t v = 0; v < want.size(); ++v) {
    if (want[v] == 0) {
      EXPECT_EQ(hits[v], 0) << "token " << v << " was cut";
      continue;
    }
    ASSERT_GT(want[v] * kCount, 5) << "too rare for the test";
    statistic += std::pow(hits[v] - want[v] * kCount, 2) / (want[v] * kCount);
    ++kinds;
  }
  const double k = kinds - 1;
  const double bound = k > 0 ? k * std::pow(1 - 2 / (9 * k) + 3.72 * std::sqrt(2 / (9 * k)), 3) : 1e-9;
  EXPECT_LT(statistic, bound) << kinds << " tokens kept";
}

std::vector<float> some_logits() {
  return {1.0f, -0.5f, 2.25f, 0.0f, 2.25f, -1.5f, 0.75f, 1.5f, -2.0f, 0.3f, 1.9f, -0.2f, 0.6f};
}

TEST(Sample, Temperature) {
  for (float temperature : {0.7f, 1.0f, 2.5f})
    expect_distribution(some_logits(), {.temperature = temperature, .seed = 1});
}

TEST(Sample, TopK) {
  for (int top_k : {1, 2, 5, 12, 13, 100}) expect_distribution(some_logits(), {.top_k = top_k, .seed = 2});
}

TEST(Sample, TopP) {
  for (float top_p : {0.01f, 0.3f, 0.5f, 0.9f, 0.97f})
    expect_distribution(some_logits(), {.top_p = top_p, .seed = 3});
}

TEST(Sample, TogetherAndForEverySeed) {
  for (uint64_t seed : {uint64_t{0}, uint64_t{77}, ~uint64_t{0}})
    expect_distribution(some_logits(), {.temperature = 1.3f, .top_p = 0.8f, .top_k = 9, .seed = seed});
}

TEST(Sample, GreedyTakesTheLowestIdOfTheLargest) {
  std::vector<float> logits = {0.0f, 3.0f, -1.0f, 3.0f, 3.0f};
  EXPECT_EQ(draw(logits, {.temperature = 0}, 1).tokens[0], 1);
  logits[0] = 3.0f;
  EXPECT_EQ(draw(logits, {.temperature = 0}, 1).tokens[0], 0);
  // Equal logits at the border of top-k: the lower id is kept.
  for (int32_t t : draw({1.0f, 1.0f, 1.0f, 1.0f}, {.top_k = 2, .seed = 4}, 100).tokens) EXPECT_LT(t, 2);
}

// A temperature near zero is the greedy choice, without overflow on the way.
TEST(Sample, AlmostNoTemperatureIsGreedy) {
  const std::vector<float> logits = {1.0f, 20.0f, 19.0f, -5.0f};
  for (float temperature : {1e-3f, 1e-6f, 1e-20f, 1e-38f, 1e-42f}) {
    for (int32_t t : draw(logits, {.temperature = temperature, .seed = 5}, 50).tokens)
      EXPECT_EQ(t, 1) << temperature;
  }
}

TEST(Sample, LogNormAgainstFp64) {
  Random random(6);
  for (int vocab : {1, 5, 16, 100, 4099}) {
    const std::vector<float> logits = random.floats(vocab, 6.0f, 30.0f);
    double sum = 0;
    for (float z : logits) sum += std::exp(double{z} - 30);
    for (int lanes : {1, 2, 8, 32}) {
      EXPECT_NEAR(draw(logits, {.temperature = 0}, 1, lanes).log_norm[0], 30 + std::log(sum), 1e-5)
          << vocab << " tokens, " << lanes << " lanes";
    }
  }
}

// A damaged model may give NaN: some token must come out, whatever the parameters.
TEST(Sample, SurvivesNan) {
  Random random(7);
  std::vector<float> logits = random.floats(5000);
  for (size_t i = 0; i < logits.size(); i += 3) logits[i] = std::numeric_limits<float>::quiet_NaN();
  for (const SampleParams& params : {SampleParams{.temperature = 0}, SampleParams{.top_k = 50, .seed = 8},
                                     SampleParams{.top_p = 0.5f, .seed = 9}, SampleParams{.seed = 10}}) {
    const Samples got = draw(logits, params, 2);
    for (int32_t t : got.tokens) {
      EXPECT_GE(t, 0);
      EXPECT_LT(t, 5000);
    }
  }
}

}  // namespace
}  // namespace perigee
