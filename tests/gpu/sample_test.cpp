// sample on the device draws what the plain CPU stage draws: the same noise, the same order; only where two
// tokens' sums lie within rounding of each other may they part, which these inputs avoid.
#include "gpu/both_devices.h"

namespace perigee {
namespace {

using test::gpu, test::Random, test::Shared, test::shared;

struct Samples {
  std::vector<int32_t> tokens;
  std::vector<float> log_norm;
};

Samples draw(Backend& backend, const Shared<float>& logits, const std::vector<SampleParams>& params,
             int vocab, int lanes, const float* processed = nullptr) {
  Shared<SampleRow> rows;
  for (size_t i = 0; i < params.size(); ++i) {
    rows.push_back({.params = params[i],
                    .position = static_cast<int64_t>(1000 + 37 * i),
                    .processed = i % 2 ? nullptr : processed});
  }
  Shared<Drawn> drawn(params.size());
  backend.sample({.logits = logits.data(),
                  .rows = rows.data(),
                  .drawn = drawn.data(),
                  .count = static_cast<int>(rows.size()),
                  .vocab = vocab,
                  .lanes = lanes});
  backend.memory().wait();
  Samples out;
  for (size_t i = 0; i < drawn.size(); ++i) {
    EXPECT_EQ(drawn[i].logit, logits[i * vocab + drawn[i].token]);
    out.tokens.push_back(drawn[i].token);
    out.log_norm.push_back(drawn[i].log_norm);
  }
  return out;
}

TEST(SampleOnDevice, AsThePlainStage) {
  for (int vocab : {50, 1000, 5003}) {
    for (int lanes : {1, 4}) {
      Random random(static_cast<uint32_t>(vocab + lanes));
      std::vector<SampleParams> params;
      for (int i = 0; i < 60; ++i) {
        params.push_back({.temperature = i % 4 == 0 ? 0.0f : 0.3f * static_cast<float>(i % 5 + 1),
                          .top_p = i % 3 == 0 ? 1.0f : 0.1f * static_cast<float>(i % 10 + 1),
                          .top_k = i % 7 == 0 ? 0 : i,
                          .seed = static_cast<uint64_t>(i)});
      }
      Shared<float> logits = shared(random.floats(static_cast<int64_t>(params.size()) * vocab, 3.0f));
      for (int v = 0; v < vocab; ++v) logits[5 * vocab + v] = 1.0f;  // all equal: ids decide
      cpu::PlainBackend plain(2);
      const Shared<float> processed = shared(random.floats(vocab, 3.0f));
      for (const float* from : {static_cast<const float*>(nullptr), processed.data()}) {
        const Samples got = draw(gpu(), logits, params, vocab, lanes, from),
                      want = draw(plain, logits, params, vocab, lanes, from);
        EXPECT_EQ(got.tokens, want.tokens) << "vocabulary of " << vocab;
        for (size_t i = 0; i < params.size(); ++i)
          EXPECT_NEAR(got.log_norm[i], want.log_norm[i], 2e-6 * vocab);
      }
    }
  }
}

TEST(SampleOnDevice, GreedyTakesTheLowestIdOfTheLargest) {
  Shared<float> logits(2 * 3000, -1.0f);
  logits[2999] = logits[1024] = logits[1500] = 7.0f;
  logits[3000 + 5] = NAN, logits[3000 + 2000] = 0.0f;
  const Samples got = draw(gpu(), logits, std::vector<SampleParams>(2, {.temperature = 0}), 3000, 1);
  EXPECT_EQ(got.tokens, (std::vector<int32_t>{1024, 2000}));
}

}  // namespace
}  // namespace perigee
