// Inputs of the stages around attention (mla_project, index_front, mla_query, mla_output), what a backend
// makes of some of their rows, and the same in fp64. One sequence whose rows span two pages.
#pragma once

#include "ops/quantised.h"
#include "ops/stage_arrays.h"

namespace perigee::test {

struct MlaCase {
  static constexpr int kRows = 70, kStart = 30, kHidden = 64, kQLora = 96, kHeads = 2, kIndexHeads = 3;
  static constexpr float kEps = 1e-5f;

  // Rows [first, first + count) of the case.
  struct Rows {
    int first = 0, count = kRows;
  };
  template <typename T>
  static std::vector<T> slice(const std::vector<T>& x, Rows r, int width) {
    return {x.begin() + int64_t{r.first} * width, x.begin() + int64_t{r.first + r.count} * width};
  }

  // A matrix in a backend's memory.
  struct Device {
    Array<bf16> data;
    Linear linear;
    Device(Memory& memory, const Matrix& m)
        : data(memory, m.data), linear{.weight = data.data(), .out = m.out, .in = m.in} {}
  };

  static SequenceCache cache_of(Memory& memory, LatentFormat latent, IndexKeyFormat index, float scale) {
    SequenceCache cache(CacheShape{.attention_has_index = {true},
                                   .latent_format = latent,
                                   .index_format = index,
                                   .latent_scale = scale},
                        memory, kStart + kRows);
    cache.reserve(kStart + kRows);
    poison_pages(memory, cache);
    return cache;
  }
  // The pages' latents, or their index keys, as bytes.
  static std::vector<uint8_t> page_bytes(Memory& memory, const SequenceCache& cache, bool index) {
    const PageTable pages = cache.pages(0);
    const int64_t bytes =
        index ? index_page_bytes(pages.index_format) : kPageTokens * latent_bytes(pages.latent_format);
    std::vector<uint8_t> out;
    for (int64_t i = 0; i * kPageTokens < kStart + kRows; ++i) {
      std::vector<uint8_t> page(bytes);
      memory.download(page.data(), index ? pages.index_key(i) : pages.latent(i), bytes);
      out.insert(out.end(), page.begin(), page.end());
    }
    return out;
  }
};

// --- mla_project

struct MlaProjectCase : MlaCase {
  Random random{1};
  Matrix q_a{random, kQLora, kHidden}, kv_a{random, 576, kHidden}, gate{random, kHeads * 128, kHidden};
  Matrix index_k{random, 128, kHidden}, head{random, kIndexHeads, kHidden};
  std::vector<bf16> x = random.bf16s(kRows * kHidden);

  struct Output {
    std::vector<bf16> q_a, kv_a, gate, index_key;
    std::vector<float> index_weight;
  };
  Output run(Backend& backend, Rows r) const {
    Memory& memory = backend.memory();
    const Device w_q_a(memory, q_a), w_kv_a(memory, kv_a), w_gate(memory, gate), w_k(memory, index_k),
        w_head(memory, head);
    MlaWeights w;
    w.q_a = w_q_a.linear, w.kv_a = w_kv_a.linear, w.gate = w_gate.linear;
    w.indexer = IndexerWeights{.q = {}, .k = w_k.linear, .head_weight = w_head.linear};
    const Array<bf16> in(memory, slice(x, r, kHidden));
    const Array<bf16> y_q(memory, r.count * kQLora), y_kv(memory, r.count * 576),
        y_gate(memory, r.count * kHeads * 128), y_key(memory, r.count * 128);
    const Array<float> y_weight(memory, r.count * kIndexHeads);
    backend.mla_project({.weights = w,
                         .x = in.data(),
                         .q_a = y_q.data(),
                         .kv_a = y_kv.data(),
                         .gate = y_gate.data(),
                         .index_key = y_key.data(),
                         .index_weight = y_weight.data(),
                         .rows = r.count});
    return {y_q.to_host(), y_kv.to_host(), y_gate.to_host(), y_key.to_host(), y_weight.to_host()};
  }
  void expect_fp64(const Output& got) const {
    const Doubles in = widen(x);
    EXPECT_LT(relative_l2(got.q_a, rounded(q_a * in)), kBf16SamePlaces);
    EXPECT_LT(relative_l2(got.kv_a, rounded(kv_a * in)), kBf16SamePlaces);
    EXPECT_LT(relative_l2(got.gate, rounded(gate * in)), kBf16SamePlaces);
    EXPECT_LT(relative_l2(got.index_key, rounded(index_k * in)), kBf16SamePlaces);
    EXPECT_LT(relative_l2(got.index_weight, head * in), kFp32);
  }
};

// --- index_front

struct IndexFrontCase : MlaCase {
  IndexKeyFormat format;
  Random random{2};
  Matrix q{random, kIndexHeads * 128, kQLora}, head{random, kIndexHeads, kHidden};
  std::vector<float> q_a_norm = random.floats(kQLora, 0.2f, 1.0f), k_norm = random.floats(128, 0.2f, 1.0f),
                     k_bias = random.floats(128, 0.2f);
  std::vector<bf16> q_a = random.bf16s(kRows * kQLora, 3.0f),
                    index_key = random.bf16s(kRows * 128, 2.0f, 0.5f);
  std::vector<float> raw = random.floats(kRows * kIndexHeads);

  explicit IndexFrontCase(IndexKeyFormat format) : format(format) {}

  struct Output {
    std::vector<bf16> cq, query;
    std::vector<float> weight;
    std::vector<uint8_t> keys;  // pages; 0xFF where the rows wrote nothing
  };
  Output run(Backend& backend, Rows r) const {
    Memory& memory = backend.memory();
    const Device w_q(memory, q), w_head(memory, head);
    const Array<float> norm_q(memory, q_a_norm), norm_k(memory, k_norm), bias_k(memory, k_bias);
    MlaWeights w;
    w.q_a = Linear{.weight = nullptr, .out = kQLora, .in = kHidden};
    w.q_a_norm = norm_q.data();
    w.indexer = IndexerWeights{.q = w_q.linear,
                               .k = {},
                               .head_weight = w_head.linear,
                               .k_norm = norm_k.data(),
                               .k_norm_bias = bias_k.data()};
    const Array<bf16> in(memory, slice(q_a, r, kQLora)), key(memory, slice(index_key, r, 128));
    const Array<float> weight(memory, slice(raw, r, kIndexHeads));
    const Array<bf16> cq(memory, r.count * kQLora), query(memory, r.count * kIndexHeads * 128);
    const SequenceCache cache = cache_of(memory, LatentFormat::kBf16, format, 1.0f);
    AttentionStep step;
    step.add(cache, r.count, kStart + r.first);
    step.begin(backend);
    backend.index_front({.weights = w,
                         .q_a = in.data(),
                         .index_key = key.data(),
                         .index_weight = weight.data(),
                         .eps = kEps,
                         .cq = cq.data(),
                         .index_query = query.data(),
                         .sequences = step.sequences,
                         .pages = step.pages[0],
                         .rows = r.count});
    return {cq.to_host(), query.to_host(), weight.to_host(), page_bytes(memory, cache, true)};
  }

  // The stored key of row r in fp64.
  Doubles key_values(const Output& got, int r) const {
    const int position = kStart + r, in_page = position % kPageTokens;
    const uint8_t* page = got.keys.data() + position / kPageTokens * index_page_bytes(format);
    bf16 values[128];
    const double scale = decode_index_key(format, page + index_value_offset(format, in_page),
                                          page + index_scale_offset(format, in_page), values);
    Doubles out;
    for (bf16 v : values) out.push_back(bf16_to_float(v) * scale);
    return out;
  }
  // The query's values and the head weight together, since the scale of the query lies in the weight.
  Doubles weighted_query(const Output& got) const {
    Doubles out;
    for (size_t i = 0; i < got.query.size(); ++i)
      out.push_back(double{bf16_to_float(got.query[i])} * got.weight[i / 128]);
    return out;
  }
  Doubles all_keys(const Output& got) const {
    Doubles out;
    for (int r = 0; r < kRows; ++r) {
      const Doubles key = key_values(got, r);
      out.insert(out.end(), key.begin(), key.end());
    }
    return out;
  }
  void expect_fp64(const Output& got) const {
    EXPECT_LT(relative_l2(got.cq, rounded(rms(widen(q_a), q_a_norm, kEps))), kBf16SamePlaces);
    // The product starts from the stage's own cq, so that its bf16 roundings do not count twice.
    const Doubles projected = q * widen(got.cq);
    Doubles want;
    for (int at = 0; at < kRows * kIndexHeads; ++at) {
      const Doubles vector = quantised(format, &projected[at * 128]);
      for (int d = 0; d < 128; ++d) want.push_back(vector[d] * raw[at] / std::sqrt(128.0 * kIndexHeads));
    }
    EXPECT_LT(relative_l2(weighted_query(got), want), 5e-4);

    Doubles want_key;
    for (int r = 0; r < kRows; ++r) {
      Doubles x(128);
      double mean = 0, variance = 0;
      for (int d = 0; d < 128; ++d) mean += (x[d] = bf16_to_float(index_key[r * 128 + d])) / 128;
      for (double v : x) variance += (v - mean) * (v - mean) / 128;
      for (int d = 0; d < 128; ++d) x[d] = (x[d] - mean) / std::sqrt(variance + kEps) * k_norm[d] + k_bias[d];
      const Doubles vector = quantised(format, x.data());
      want_key.insert(want_key.end(), vector.begin(), vector.end());
    }
    EXPECT_LT(relative_l2(all_keys(got), want_key), 5e-4);
  }
};

// --- mla_query

struct MlaQueryCase : MlaCase {
  LatentFormat format;
  float scale;
  Random random{3};
  Matrix q{random, kHeads * 192, kQLora}, uk{random, kHeads * 512, 128};
  std::vector<float> norm = random.floats(512, 0.2f, 1.0f);
  std::vector<bf16> cq = random.bf16s(kRows * kQLora), kv_a = random.bf16s(kRows * 576);

  explicit MlaQueryCase(LatentFormat format)
      : format(format), scale(format == LatentFormat::kBf16 ? 1.0f : 0.02f) {}

  struct Output {
    std::vector<bf16> query;
    std::vector<uint8_t> latents;  // pages; 0xFF where the rows wrote nothing
  };
  Output run(Backend& backend, Rows r) const {
    Memory& memory = backend.memory();
    const Device w_q(memory, q), w_uk(memory, uk);
    const Array<float> norm_array(memory, norm);
    const MlaConfig config{.num_heads = kHeads, .q_lora_rank = kQLora};
    MlaWeights w;
    w.q = w_q.linear;
    w.w_uk_t = w_uk.linear;
    w.kv_a_norm = norm_array.data();
    const Array<bf16> in(memory, slice(cq, r, kQLora)), kv(memory, slice(kv_a, r, 576));
    const Array<bf16> query(memory, int64_t{r.count} * kHeads * 576);
    const SequenceCache cache = cache_of(memory, format, IndexKeyFormat::kFp8, scale);
    AttentionStep step;
    step.add(cache, r.count, kStart + r.first);
    step.begin(backend);
    backend.mla_query({.weights = w,
                       .config = config,
                       .q_input = in.data(),
                       .kv_a = kv.data(),
                       .eps = kEps,
                       .query = query.data(),
                       .sequences = step.sequences,
                       .pages = step.pages[0],
                       .rows = r.count});
    return {query.to_host(), page_bytes(memory, cache, false)};
  }

  Doubles latents(const Output& got) const {  // [rows, 576] as readers see them
    Doubles out;
    for (int position = kStart; position < kStart + kRows; ++position) {
      bf16 latent[576];
      decode_latent(format, got.latents.data() + position * latent_bytes(format), scale, latent);
      for (bf16 v : latent) out.push_back(bf16_to_float(v));
    }
    return out;
  }
  void expect_fp64(const Output& got) const {
    const Doubles full = rounded(q * widen(cq));
    Doubles want(got.query.size());
    for (int at = 0; at < kRows * kHeads; ++at) {
      const double* in = &full[at * 192];
      for (int o = 0; o < 512; ++o) {
        double sum = 0;
        for (int i = 0; i < 128; ++i)
          sum += bf16_to_float(uk.data[((at % kHeads) * 512 + o) * 128 + i]) * in[i];
        want[at * 576 + o] = rounded(sum);
      }
      std::copy_n(in + 128, 64, want.begin() + at * 576 + 512);
    }
    EXPECT_LT(relative_l2(got.query, want), kBf16SamePlaces);

    Doubles want_latent;
    for (int r = 0; r < kRows; ++r) {
      const Doubles row = widen(std::vector<bf16>(kv_a.begin() + r * 576, kv_a.begin() + (r + 1) * 576));
      const Doubles normed = rms(Doubles(row.begin(), row.begin() + 512), norm, kEps);
      want_latent.insert(want_latent.end(), normed.begin(), normed.end());
      want_latent.insert(want_latent.end(), row.begin() + 512, row.end());
    }
    // What each format loses: half a step of bf16, of e4m3, and of e2m1 under a scale per 16.
    const double bound = format == LatentFormat::kBf16 ? 2e-3 : format == LatentFormat::kFp8 ? 0.03 : 0.12;
    EXPECT_LT(relative_l2(latents(got), want_latent), bound) << latent_format_name(format);
  }
};

// --- mla_output

struct MlaOutputCase : MlaCase {
  bool gated;
  int lanes;
  Random random;
  Matrix uv{random, kHeads * 128, 512}, o_proj{random, kHidden, kHeads * 128};
  std::vector<bf16> z = random.bf16s(kRows * kHeads * 512), gate = random.bf16s(kRows * kHeads * 128, 2.0f);

  MlaOutputCase(bool gated, int lanes) : gated(gated), lanes(lanes), random(4 + lanes) {}

  std::vector<float> run(Backend& backend, Rows r) const {  // [lanes, rows, hidden]
    Memory& memory = backend.memory();
    const Device w_uv(memory, uv), w_o(memory, o_proj);
    const MlaConfig config{.num_heads = kHeads};
    MlaWeights w;
    w.w_uv = w_uv.linear;
    w.o = w_o.linear;
    const Array<bf16> in(memory, slice(z, r, kHeads * 512)), gates(memory, slice(gate, r, kHeads * 128));
    const Array<float> partial(memory, int64_t{lanes} * r.count * kHidden);
    backend.mla_output({.weights = w,
                        .config = config,
                        .z = in.data(),
                        .gate = gated ? gates.data() : nullptr,
                        .partial = partial.data(),
                        .rows = r.count,
                        .lanes = lanes});
    return partial.to_host();
  }
  void expect_fp64(const std::vector<float>& got) const {
    Doubles o(int64_t{kRows} * kHeads * 128);
    for (int at = 0; at < kRows * kHeads * 128; ++at) {
      const int row_head = at / 128, weight_row = at % (kHeads * 128);
      double sum = 0;
      for (int i = 0; i < 512; ++i)
        sum += double{bf16_to_float(uv.data[weight_row * 512 + i])} * bf16_to_float(z[row_head * 512 + i]);
      o[at] = rounded(gated ? sum * sigmoid(bf16_to_float(gate[at])) : sum);
    }
    EXPECT_LT(relative_l2(got, o_proj.lanes(o, lanes)), kBf16SamePlaces);
  }
};

}  // namespace perigee::test
