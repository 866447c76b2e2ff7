// attn_res_mix on the device: against fp64, against the plain CPU backend, and the row rule by bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"
#include "gpu/both_devices.h"
#include "ops/cuda/device_array.h"

namespace perigee {
namespace {

constexpr float kEps = 1e-5f;

struct Case {
  int rows, hidden, banks;
};

struct Inputs {
  Case shape;
  std::vector<std::vector<bf16>> source;  // banks, then the stream; each [rows, hidden]
  std::vector<float> score, norm;         // [hidden]
};

// Sources of different sizes, and scores large enough that the softmax prefers some of them.
Inputs make_inputs(const Case& c) {
  std::mt19937 random(7 + c.rows + c.hidden + c.banks);
  std::normal_distribution<float> normal;
  Inputs in{.shape = c, .source = {}, .score = {}, .norm = {}};
  for (int j = 0; j <= c.banks; ++j) {
    std::vector<bf16>& v = in.source.emplace_back(int64_t{c.rows} * c.hidden);
    for (bf16& x : v) x = float_to_bf16(normal(random) * (0.5f + j));
  }
  for (int d = 0; d < c.hidden; ++d) {
    in.score.push_back(normal(random) * 1.5f / std::sqrt(static_cast<float>(c.hidden)));
    in.norm.push_back(1.0f + 0.2f * normal(random));
  }
  return in;
}

// The rows named, in that order.
Inputs select_rows(const Inputs& in, std::span<const int> rows) {
  Inputs out = in;
  out.shape.rows = static_cast<int>(rows.size());
  for (std::vector<bf16>& v : out.source) {
    std::vector<bf16> chosen;
    for (int r : rows) {
      const auto first = v.begin() + int64_t{r} * in.shape.hidden;
      chosen.insert(chosen.end(), first, first + in.shape.hidden);
    }
    v = chosen;
  }
  return out;
}

std::vector<bf16> on_device(const Inputs& in) {
  std::vector<cuda::DeviceArray<bf16>> source;
  std::vector<const bf16*> pointer;
  for (const std::vector<bf16>& v : in.source) {
    source.emplace_back(std::span(v));
    pointer.push_back(source.back().data());
  }
  const cuda::DeviceArray<float> score{std::span(in.score)}, norm{std::span(in.norm)};
  const std::vector<bf16> poison(in.source[0].size(), 0x7FFF);
  cuda::DeviceArray<bf16> out{std::span(poison)};
  test::gpu().attn_res_mix({.stream = pointer.back(),
                            .banks = std::span(pointer).first(in.shape.banks),
                            .score = score.data(),
                            .norm = norm.data(),
                            .eps = kEps,
                            .out = out.data(),
                            .rows = in.shape.rows,
                            .hidden = in.shape.hidden});
  test::gpu().memory().wait();
  return out.to_host();
}

std::vector<bf16> on_cpu(const Inputs& in) {
  std::vector<const bf16*> banks;
  for (int j = 0; j < in.shape.banks; ++j) banks.push_back(in.source[j].data());
  std::vector<bf16> out(in.source[0].size());
  cpu::PlainBackend(1).attn_res_mix({.stream = in.source.back().data(),
                                     .banks = banks,
                                     .score = in.score.data(),
                                     .norm = in.norm.data(),
                                     .eps = kEps,
                                     .out = out.data(),
                                     .rows = in.shape.rows,
                                     .hidden = in.shape.hidden});
  return out;
}

std::vector<double> in_fp64(const Inputs& in) {
  const int hidden = in.shape.hidden, sources = in.shape.banks + 1;
  std::vector<double> out;
  for (int r = 0; r < in.shape.rows; ++r) {
    const auto value = [&](int j, int d) -> double {
      return bf16_to_float(in.source[j][int64_t{r} * hidden + d]);
    };
    std::vector<double> s(sources), mix(hidden);
    for (int j = 0; j < sources; ++j) {
      double squares = 0, weighted = 0;
      for (int d = 0; d < hidden; ++d) {
        squares += value(j, d) * value(j, d);
        weighted += value(j, d) * in.score[d];
      }
      s[j] = weighted / std::sqrt(squares / hidden + kEps);
    }
    const double top = *std::max_element(s.begin(), s.end());
    double total = 0, mix_squares = 0;
    for (double& x : s) total += x = std::exp(x - top);
    for (int d = 0; d < hidden; ++d) {
      for (int j = 0; j < sources; ++j) mix[d] += s[j] / total * value(j, d);
      mix_squares += mix[d] * mix[d];
    }
    for (int d = 0; d < hidden; ++d) {
      out.push_back(mix[d] / std::sqrt(mix_squares / hidden + kEps) * in.norm[d]);
    }
  }
  return out;
}

int64_t differing(std::span<const bf16> a, std::span<const bf16> b) {
  EXPECT_EQ(a.size(), b.size());
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
  return count;
}

class AttnResMix : public testing::TestWithParam<Case> {};

// Half a step of bf16 (2^-8 of the value) for the one rounding, and 1e-5 of a typical value for fp32.
TEST_P(AttnResMix, AgreesWithFp64) {
  const Inputs in = make_inputs(GetParam());
  const std::vector<bf16> out = on_device(in);
  const std::vector<double> exact = in_fp64(in);
  double error = 0, size = 0;
  int64_t outside = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double off = std::fabs(bf16_to_float(out[i]) - exact[i]);
    outside += !(off <= std::fabs(exact[i]) * 0x1p-8 + 1e-5);
    error += off * off;
    size += exact[i] * exact[i];
  }
  RecordProperty("relative_l2", testing::PrintToString(std::sqrt(error / size)));
  EXPECT_EQ(outside, 0) << "of " << out.size();
  EXPECT_LE(std::sqrt(error / size), 2e-3);
}

// The two sum in different orders, so at most 0.2 % of the results fall to the other side of a rounding
// point, and none is further off than one step.
TEST_P(AttnResMix, AgreesWithTheCpuBackend) {
  const Inputs in = make_inputs(GetParam());
  const std::vector<bf16> device = on_device(in), cpu = on_cpu(in);
  int64_t outside = 0;
  for (size_t i = 0; i < device.size(); ++i) {
    const float a = bf16_to_float(device[i]), b = bf16_to_float(cpu[i]);
    outside += !(std::fabs(a - b) <= std::fabs(b) * 0x1p-7f + 1e-5f);
  }
  const double share = static_cast<double>(differing(device, cpu)) / static_cast<double>(device.size());
  RecordProperty("share_differing", testing::PrintToString(share));
  EXPECT_EQ(outside, 0) << "of " << device.size();
  EXPECT_LE(share, 2e-3);
}

// The row rule: alone, in a batch, in another order: 0 differing bits.
TEST_P(AttnResMix, ARowDoesNotDependOnItsBatch) {
  const Inputs in = make_inputs(GetParam());
  const int rows = in.shape.rows, hidden = in.shape.hidden;
  const std::vector<bf16> batch = on_device(in);
  const auto row = [&](const std::vector<bf16>& v, int r) {
    return std::span(v).subspan(size_t{1} * r * hidden, hidden);
  };
  std::vector<int> order(rows);
  for (int r = 0; r < rows; ++r) order[r] = r;
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  const std::vector<bf16> permuted = on_device(select_rows(in, order));
  int64_t off = 0;
  for (int i = 0; i < rows; ++i) {
    off += differing(row(permuted, i), row(batch, order[i]));
    off += differing(on_device(select_rows(in, std::span(&order[i], 1))), row(batch, order[i]));
  }
  EXPECT_EQ(off, 0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttnResMix,
                         testing::Values(Case{37, 256, 0}, Case{37, 256, 1}, Case{37, 256, 8},
                                         Case{37, 2304, 0}, Case{37, 2304, 1}, Case{37, 2304, 8},
                                         Case{37, 7168, 0}, Case{37, 7168, 1}, Case{37, 7168, 8},
                                         Case{3, 272, 2}, Case{300, 272, 8}, Case{3, 8192, 5}),
                         [](const auto& info) {
                           return "rows" + std::to_string(info.param.rows) + "_hidden" +
                                  std::to_string(info.param.hidden) + "_banks" +
                                  std::to_string(info.param.banks);
                         });

TEST(AttnResMixArguments, NoRowsIsNoWork) {
  EXPECT_TRUE(on_device(make_inputs({.rows = 0, .hidden = 256, .banks = 1})).empty());
}

TEST(AttnResMixArguments, SizesThatDoNotFitAreNamed) {
  const auto message = [](const Case& c) -> std::string {
    try {
      on_device(make_inputs(c));
    } catch (const Error& e) {
      return e.code() == ErrorCode::kUnsupported ? e.what() : "another code";
    }
    return "nothing thrown";
  };
  EXPECT_NE(message({1, 12, 1}).find("hidden size 12"), std::string::npos);
  EXPECT_NE(message({1, 8200, 1}).find("hidden size 8200"), std::string::npos);
  EXPECT_NE(message({1, 256, 9}).find("9 AttnRes banks"), std::string::npos);
}

}  // namespace
}  // namespace perigee
