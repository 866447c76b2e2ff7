// embed, attn_res_mix, lane_reduce, lm_head.
#include <cstring>

#include "ops/reference.h"
#include "ops/vectors.h"

namespace perigee {
namespace {

using test::Doubles, test::Matrix, test::Random;

TEST(Embed, CopiesRows) {
  Random random(1);
  constexpr int kHidden = 48;
  const std::vector<bf16> table = random.bf16s(10 * kHidden);
  const std::vector<int32_t> tokens = {9, 0, 3, 3};
  std::vector<bf16> out(tokens.size() * kHidden);
  cpu::PlainBackend(1).embed({.table = table.data(), .tokens = tokens, .out = out.data(), .hidden = kHidden});
  for (size_t r = 0; r < tokens.size(); ++r)
    EXPECT_EQ(std::memcmp(&out[r * kHidden], &table[tokens[r] * kHidden], kHidden * sizeof(bf16)), 0);
}

// The mix of one row in fp64, before the norm.
Doubles mix(const std::vector<Doubles>& sources, const std::vector<float>& score, double eps) {
  const int n = static_cast<int>(score.size());
  Doubles s, out(n);
  for (const Doubles& v : sources) {
    double dot = 0;
    for (int i = 0; i < n; ++i) dot += v[i] * score[i];
    s.push_back(dot / std::sqrt(test::mean_square(v.data(), n) + eps));
  }
  const double top = *std::max_element(s.begin(), s.end());
  double total = 0;
  for (double& x : s) total += x = std::exp(x - top);
  for (size_t j = 0; j < sources.size(); ++j) {
    for (int i = 0; i < n; ++i) out[i] += s[j] / total * sources[j][i];
  }
  return out;
}

TEST(AttnResMix, AgainstFp64) {
  constexpr int kRows = 5, kHidden = 256;
  for (int banks : {0, 1, 3, 8}) {
    Random random(10 + banks);
    const std::vector<bf16> stream = random.bf16s(kRows * kHidden, 2.0f);
    std::vector<std::vector<bf16>> bank;
    std::vector<const bf16*> views;
    for (int b = 0; b < banks; ++b) bank.push_back(random.bf16s(kRows * kHidden, 1.0f + b));
    for (const auto& b : bank) views.push_back(b.data());
    const std::vector<float> score = random.floats(kHidden, 0.1f), norm = random.floats(kHidden, 0.1f, 1.0f);
    std::vector<bf16> out(kRows * kHidden);
    cpu::PlainBackend(2).attn_res_mix({.stream = stream.data(),
                                       .banks = views,
                                       .score = score.data(),
                                       .norm = norm.data(),
                                       .eps = 1e-5f,
                                       .out = out.data(),
                                       .rows = kRows,
                                       .hidden = kHidden});
    Doubles want;
    for (int r = 0; r < kRows; ++r) {
      std::vector<Doubles> sources;
      const auto row = [&](const std::vector<bf16>& v) {
        return test::widen(std::vector<bf16>(v.begin() + r * kHidden, v.begin() + (r + 1) * kHidden));
      };
      for (const auto& b : bank) sources.push_back(row(b));
      sources.push_back(row(stream));
      const Doubles y = test::rms(banks ? mix(sources, score, 1e-5) : sources[0], norm, 1e-5);
      want.insert(want.end(), y.begin(), y.end());
    }
    EXPECT_LT(test::relative_l2(out, test::rounded(want)), test::kBf16SamePlaces) << banks << " banks";
  }
}

TEST(AttnResMix, OracleVectors) {
  const test::Vectors v("attn_res");
  const auto bank0 = v.bf16s("bank0"), bank1 = v.bf16s("bank1"), bank2 = v.bf16s("bank2"),
             stream = v.bf16s("stream");
  const std::vector<const bf16*> banks = {bank0.data(), bank1.data(), bank2.data()};
  const Doubles norm = test::widen(v.bf16s("norm")), proj = test::widen(v.bf16s("proj"));
  std::vector<float> score, final_norm;
  for (int i = 0; i < 64; ++i) score.push_back(static_cast<float>(norm[i] * proj[i]));
  for (double x : test::widen(v.bf16s("final_norm"))) final_norm.push_back(static_cast<float>(x));
  std::vector<bf16> out(4 * 64);
  cpu::PlainBackend(1).attn_res_mix({.stream = stream.data(),
                                     .banks = banks,
                                     .score = score.data(),
                                     .norm = final_norm.data(),
                                     .eps = 1e-5f,
                                     .out = out.data(),
                                     .rows = 4,
                                     .hidden = 64});
  EXPECT_LT(test::relative_l2(out, test::rounded(v.doubles("out"))), test::kBf16SamePlaces);
}

TEST(LaneReduce, AddsLanesThenRounds) {
  constexpr int kRows = 3, kHidden = 64;
  for (int lanes : {1, 2, 8, 32}) {
    for (bool restart : {false, true}) {
      Random random(20 + lanes);
      const std::vector<float> partial = random.floats(int64_t{lanes} * kRows * kHidden);
      std::vector<bf16> stream = random.bf16s(kRows * kHidden);
      Doubles want = test::widen(stream);
      for (int i = 0; i < kRows * kHidden; ++i) {
        double sum = 0;
        for (int l = 0; l < lanes; ++l) sum += partial[l * kRows * kHidden + i];
        want[i] = restart ? test::rounded(sum) : test::rounded(want[i] + test::rounded(sum));
      }
      cpu::PlainBackend(2).lane_reduce({.partial = partial.data(),
                                        .stream = stream.data(),
                                        .restart = restart,
                                        .lanes = lanes,
                                        .rows = kRows,
                                        .hidden = kHidden});
      EXPECT_LT(test::relative_l2(stream, want), test::kBf16SamePlaces)
          << lanes << " lanes, restart " << restart;
    }
  }
}

TEST(LmHead, ChosenRowsInFp32) {
  Random random(30);
  constexpr int kHidden = 320, kVocab = 77;
  const Matrix weight(random, kVocab, kHidden);
  const std::vector<bf16> x = random.bf16s(6 * kHidden);
  const std::vector<int> rows = {5, 0, 2};
  std::vector<float> logits(rows.size() * kVocab);
  cpu::PlainBackend(2).lm_head({.weight = weight, .x = x.data(), .rows = rows, .logits = logits.data()});
  const Doubles all = weight * test::widen(x);
  Doubles want;
  for (int r : rows) want.insert(want.end(), all.begin() + r * kVocab, all.begin() + (r + 1) * kVocab);
  EXPECT_LT(test::relative_l2(logits, want), test::kFp32);
}

}  // namespace
}  // namespace perigee
