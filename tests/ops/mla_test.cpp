// mla_project, index_front, mla_query, mla_output: the products around attention, and what they put into the
// cache.
#include "cache/sequence_cache.h"
#include "ops/quantised.h"
#include "ops/reference.h"

namespace perigee {
namespace {

using test::Doubles, test::Matrix, test::Random;

constexpr int kRows = 70, kStart = 30, kHidden = 64, kQLora = 96, kHeads = 2,
              kIndexHeads = 3;  // rows span two pages

SequenceCache one_dsa_layer(LatentFormat latent, IndexKeyFormat index, float latent_scale = 1.0f) {
  SequenceCache cache(CacheShape{.attention_has_index = {true},
                                 .latent_format = latent,
                                 .index_format = index,
                                 .latent_scale = latent_scale});
  cache.reserve(kStart + kRows);
  return cache;
}

constexpr SequenceRows kSequence{.first_row = 0, .rows = kRows, .start = kStart, .accepted = kStart + kRows};

TEST(MlaProject, AgainstFp64) {
  Random random(1);
  const Matrix q_a(random, kQLora, kHidden), kv_a(random, 576, kHidden), gate(random, kHeads * 128, kHidden);
  const Matrix index_k(random, 128, kHidden), head(random, kIndexHeads, kHidden);
  MlaWeights w;
  w.q_a = q_a, w.kv_a = kv_a, w.gate = gate;
  w.indexer = IndexerWeights{.q = {}, .k = index_k, .head_weight = head};
  const std::vector<bf16> x = random.bf16s(5 * kHidden);
  std::vector<bf16> got_q(5 * kQLora), got_kv(5 * 576), got_gate(5 * kHeads * 128), got_key(5 * 128);
  std::vector<float> got_weight(5 * kIndexHeads);
  cpu::PlainBackend(2).mla_project({.weights = w,
                                    .x = x.data(),
                                    .q_a = got_q.data(),
                                    .kv_a = got_kv.data(),
                                    .gate = got_gate.data(),
                                    .index_key = got_key.data(),
                                    .index_weight = got_weight.data(),
                                    .rows = 5});
  const Doubles in = test::widen(x);
  EXPECT_LT(test::relative_l2(got_q, test::rounded(q_a * in)), test::kBf16SamePlaces);
  EXPECT_LT(test::relative_l2(got_kv, test::rounded(kv_a * in)), test::kBf16SamePlaces);
  EXPECT_LT(test::relative_l2(got_gate, test::rounded(gate * in)), test::kBf16SamePlaces);
  EXPECT_LT(test::relative_l2(got_key, test::rounded(index_k * in)), test::kBf16SamePlaces);
  EXPECT_LT(test::relative_l2(got_weight, head * in), test::kFp32);
}

class IndexFront : public testing::TestWithParam<IndexKeyFormat> {};

TEST_P(IndexFront, AgainstFp64) {
  const IndexKeyFormat format = GetParam();
  Random random(2);
  const Matrix q(random, kIndexHeads * 128, kQLora), head(random, kIndexHeads, kHidden);
  const std::vector<float> q_a_norm = random.floats(kQLora, 0.2f, 1.0f);
  const std::vector<float> k_norm = random.floats(128, 0.2f, 1.0f), k_bias = random.floats(128, 0.2f);
  MlaWeights w;
  w.q_a = Linear{.weight = nullptr, .out = kQLora, .in = kHidden};
  w.q_a_norm = q_a_norm.data();
  w.indexer = IndexerWeights{
      .q = q, .k = {}, .head_weight = head, .k_norm = k_norm.data(), .k_norm_bias = k_bias.data()};
  const std::vector<bf16> q_a = random.bf16s(kRows * kQLora, 3.0f),
                          index_key = random.bf16s(kRows * 128, 2.0f, 0.5f);
  const std::vector<float> raw = random.floats(kRows * kIndexHeads);
  std::vector<float> weight = raw;
  std::vector<bf16> cq(kRows * kQLora), query(kRows * kIndexHeads * 128);
  SequenceCache cache = one_dsa_layer(LatentFormat::kBf16, format);
  const PageTable pages = cache.pages(0);
  cpu::PlainBackend(2).index_front({.weights = w,
                                    .q_a = q_a.data(),
                                    .index_key = index_key.data(),
                                    .index_weight = weight.data(),
                                    .eps = 1e-6f,
                                    .cq = cq.data(),
                                    .index_query = query.data(),
                                    .sequences = std::span(&kSequence, 1),
                                    .pages = std::span(&pages, 1),
                                    .rows = kRows});
  EXPECT_LT(test::relative_l2(cq, test::rounded(test::rms(test::widen(q_a), q_a_norm, 1e-6))),
            test::kBf16SamePlaces);

  // The query's values and the head weight together, since the scale of the query lies in the weight. The
  // product starts from the stage's own cq, so that its bf16 roundings do not count twice.
  const Doubles projected = q * test::widen(cq);
  Doubles got, want;
  for (int at = 0; at < kRows * kIndexHeads; ++at) {
    const Doubles vector = test::quantised(format, &projected[at * 128]);
    for (int d = 0; d < 128; ++d) {
      got.push_back(double{bf16_to_float(query[at * 128 + d])} * weight[at]);
      want.push_back(vector[d] * raw[at] / std::sqrt(128.0 * kIndexHeads));
    }
  }
  EXPECT_LT(test::relative_l2(got, want), 5e-4);

  Doubles got_key, want_key;
  for (int r = 0; r < kRows; ++r) {
    Doubles x(128);
    double mean = 0, variance = 0;
    for (int d = 0; d < 128; ++d) mean += (x[d] = bf16_to_float(index_key[r * 128 + d])) / 128;
    for (double v : x) variance += (v - mean) * (v - mean) / 128;
    for (int d = 0; d < 128; ++d) x[d] = (x[d] - mean) / std::sqrt(variance + 1e-6) * k_norm[d] + k_bias[d];
    const Doubles vector = test::quantised(format, x.data());
    want_key.insert(want_key.end(), vector.begin(), vector.end());
    const int position = kStart + r, in_page = position % kPageTokens;
    const uint8_t* page = pages.index_key(position / kPageTokens);
    bf16 values[128];
    const float scale = decode_index_key(format, page + index_value_offset(format, in_page),
                                         page + index_scale_offset(format, in_page), values);
    for (bf16 v : values) got_key.push_back(double{bf16_to_float(v)} * scale);
  }
  EXPECT_LT(test::relative_l2(got_key, want_key), 5e-4);
}

INSTANTIATE_TEST_SUITE_P(, IndexFront,
                         testing::Values(IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kMxfp4),
                         [](const auto& info) { return std::string(index_key_format_name(info.param)); });

TEST(MlaQuery, AgainstFp64) {
  for (LatentFormat format : {LatentFormat::kBf16, LatentFormat::kFp8, LatentFormat::kNvfp4}) {
    Random random(3);
    const MlaConfig config{.num_heads = kHeads, .q_lora_rank = kQLora};
    const Matrix q(random, kHeads * 192, kQLora), uk(random, kHeads * 512, 128);
    const std::vector<float> norm = random.floats(512, 0.2f, 1.0f);
    MlaWeights w;
    w.q = q;
    w.w_uk_t = uk;
    w.kv_a_norm = norm.data();
    const std::vector<bf16> cq = random.bf16s(kRows * kQLora), kv_a = random.bf16s(kRows * 576);
    std::vector<bf16> query(kRows * kHeads * 576);
    SequenceCache cache =
        one_dsa_layer(format, IndexKeyFormat::kFp8, format == LatentFormat::kBf16 ? 1.0f : 0.02f);
    const PageTable pages = cache.pages(0);
    cpu::PlainBackend(2).mla_query({.weights = w,
                                    .config = config,
                                    .q_input = cq.data(),
                                    .kv_a = kv_a.data(),
                                    .eps = 1e-5f,
                                    .query = query.data(),
                                    .sequences = std::span(&kSequence, 1),
                                    .pages = std::span(&pages, 1),
                                    .rows = kRows});
    const Doubles full = test::rounded(q * test::widen(cq));
    Doubles want(query.size());
    for (int at = 0; at < kRows * kHeads; ++at) {
      const double* in = &full[at * 192];
      for (int o = 0; o < 512; ++o) {
        double sum = 0;
        for (int i = 0; i < 128; ++i)
          sum += bf16_to_float(uk.data[((at % kHeads) * 512 + o) * 128 + i]) * in[i];
        want[at * 576 + o] = test::rounded(sum);
      }
      std::copy_n(in + 128, 64, want.begin() + at * 576 + 512);
    }
    EXPECT_LT(test::relative_l2(query, want), test::kBf16SamePlaces);

    Doubles got_latent, want_latent;
    for (int r = 0; r < kRows; ++r) {
      const Doubles row =
          test::widen(std::vector<bf16>(kv_a.begin() + r * 576, kv_a.begin() + (r + 1) * 576));
      const Doubles normed = test::rms(Doubles(row.begin(), row.begin() + 512), norm, 1e-5);
      want_latent.insert(want_latent.end(), normed.begin(), normed.end());
      want_latent.insert(want_latent.end(), row.begin() + 512, row.end());
      const int position = kStart + r;
      bf16 latent[576];
      decode_latent(format,
                    pages.latent(position / kPageTokens) + position % kPageTokens * latent_bytes(format),
                    pages.latent_scale, latent);
      for (bf16 v : latent) got_latent.push_back(bf16_to_float(v));
    }
    // What each format loses: half a step of bf16, of e4m3, and of e2m1 under a scale per 16.
    const double bound = format == LatentFormat::kBf16 ? 2e-3 : format == LatentFormat::kFp8 ? 0.03 : 0.12;
    EXPECT_LT(test::relative_l2(got_latent, want_latent), bound) << latent_format_name(format);
  }
}

TEST(MlaOutput, AgainstFp64) {
  for (bool gated : {false, true}) {
    for (int lanes : {1, 2, 4}) {
      Random random(4 + lanes);
      const MlaConfig config{.num_heads = kHeads};
      const Matrix uv(random, kHeads * 128, 512), o_proj(random, kHidden, kHeads * 128);
      MlaWeights w;
      w.w_uv = uv;
      w.o = o_proj;
      const std::vector<bf16> z = random.bf16s(5 * kHeads * 512), gate = random.bf16s(5 * kHeads * 128, 2.0f);
      std::vector<float> partial(lanes * 5 * kHidden);
      cpu::PlainBackend(2).mla_output({.weights = w,
                                       .config = config,
                                       .z = z.data(),
                                       .gate = gated ? gate.data() : nullptr,
                                       .partial = partial.data(),
                                       .rows = 5,
                                       .lanes = lanes});
      Doubles o(5 * kHeads * 128);
      for (int at = 0; at < 5 * kHeads * 128; ++at) {
        const int row_head = at / 128, weight_row = at % (kHeads * 128);
        double sum = 0;
        for (int i = 0; i < 512; ++i)
          sum += double{bf16_to_float(uv.data[weight_row * 512 + i])} * bf16_to_float(z[row_head * 512 + i]);
        o[at] = test::rounded(gated ? sum * test::sigmoid(bf16_to_float(gate[at])) : sum);
      }
      EXPECT_LT(test::relative_l2(partial, o_proj.lanes(o, lanes)), test::kBf16SamePlaces);
    }
  }
}

}  // namespace
}  // namespace perigee
