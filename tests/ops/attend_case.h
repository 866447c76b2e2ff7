// Inputs of sparse_attend and dense_attend, what a backend makes of them, and softmax attention in fp64.
#pragma once

#include <numeric>
#include <optional>

#include "ops/reference.h"
#include "ops/stage_arrays.h"

namespace perigee::test {

// Rows are the last `rows` positions of each sequence.
struct AttendCase {
  static constexpr int kLatent = 576, kRank = 512;
  struct Sequence {
    std::vector<bf16> latent;                  // [keys, 576] before the cache format rounds it
    std::vector<bf16> query;                   // [rows, heads, 576]
    std::vector<std::vector<int32_t>> chosen;  // [rows] ascending positions, for sparse_attend
    int rows = 0;
    int keys() const { return static_cast<int>(latent.size()) / kLatent; }
  };

  int heads = 2;
  LatentFormat format = LatentFormat::kBf16;
  float scale = 1.0f;
  int attention_lanes = 1, dense_segment = 4096, top_k = 600;
  bool sparse = false;
  std::vector<Sequence> sequences;

  int64_t row_size() const { return int64_t{heads} * kRank; }

  void add(Random& random, int keys, int rows, float query_scale = 1.5f) {
    sequences.push_back({.latent = random.bf16s(int64_t{keys} * kLatent),
                         .query = random.bf16s(int64_t{rows} * heads * kLatent, query_scale),
                         .chosen = {},
                         .rows = rows});
  }
  // `size` of each row's positions, at most all.
  void choose(Random& random, int size) {
    sparse = true;
    for (Sequence& s : sequences) {
      s.chosen.clear();
      for (int r = 0; r < s.rows; ++r) {
        std::vector<int32_t> all(s.keys() - s.rows + r + 1);
        std::iota(all.begin(), all.end(), 0);
        const int taken = std::min(size, static_cast<int>(all.size()));
        for (int i = 0; i < taken; ++i)
          std::swap(all[i], all[i + random.below(static_cast<int>(all.size()) - i)]);
        all.resize(taken);
        std::sort(all.begin(), all.end());
        s.chosen.push_back(all);
      }
    }
  }
  // Rows [from, from + count) of one sequence as a step of their own: later keys do not exist.
  AttendCase part(int sequence, int from, int count) const {
    AttendCase out = *this;
    const Sequence& s = sequences[sequence];
    const int64_t keys = s.keys() - s.rows + from + count, query = int64_t{heads} * kLatent;
    Sequence p{.latent = {s.latent.begin(), s.latent.begin() + keys * kLatent},
               .query = {s.query.begin() + from * query, s.query.begin() + (from + count) * query},
               .chosen = {},
               .rows = count};
    if (sparse) p.chosen.assign(s.chosen.begin() + from, s.chosen.begin() + from + count);
    out.sequences = {p};
    return out;
  }

  // [all rows, heads, 512]; every cache byte that holds no key is 0xFF.
  std::vector<bf16> run(Backend& backend) const {
    Memory& memory = backend.memory();
    std::vector<SequenceCache> caches;
    AttentionStep step;
    std::vector<bf16> query;
    std::vector<int32_t> selected, count;
    for (const Sequence& s : sequences) {
      SequenceCache& cache = caches.emplace_back(
          CacheShape{.attention_has_index = {false}, .latent_format = format, .latent_scale = scale}, memory,
          s.keys());
      cache.reserve(s.keys());
      write(memory, cache, s);
      step.add(cache, s.rows, s.keys() - s.rows);
      query.insert(query.end(), s.query.begin(), s.query.end());
      for (const std::vector<int32_t>& chosen : s.chosen) {
        count.push_back(static_cast<int32_t>(chosen.size()));
        selected.insert(selected.end(), chosen.begin(), chosen.end());
        selected.resize(count.size() * top_k, -1);
      }
    }
    const Array<bf16> queries(memory, query);
    const Array<int32_t> selected_array(memory, selected), counts(memory, count);
    const Array<bf16> out(memory, static_cast<int64_t>(step.tokens.size()) * row_size());
    const MlaConfig config{.num_heads = heads};
    step.begin(backend);
    const AttendArgs args{.config = config,
                          .query = queries.data(),
                          .sequences = step.sequences,
                          .pages = step.pages[0],
                          .selected = selected_array.data(),
                          .count = counts.data(),
                          .top_k = top_k,
                          .attention_lanes = attention_lanes,
                          .dense_segment = dense_segment,
                          .out = out.data()};
    sparse ? backend.sparse_attend(args) : backend.dense_attend(args);
    return out.to_host();
  }

  // The same in fp64 over the stored latents, not rounded.
  Doubles fp64() const {
    Doubles out;
    for (const Sequence& s : sequences) {
      const Doubles latent = stored(s);
      for (int r = 0; r < s.rows; ++r) {
        std::vector<int32_t> keys(s.keys() - s.rows + r + 1);
        std::iota(keys.begin(), keys.end(), 0);
        if (sparse) keys = s.chosen[r];
        for (int h = 0; h < heads; ++h) {
          const Doubles y = attention(&s.query[(int64_t{r} * heads + h) * kLatent], latent, keys);
          out.insert(out.end(), y.begin(), y.end());
        }
      }
    }
    return out;
  }

  static Doubles attention(const bf16* query, const Doubles& latent, const std::vector<int32_t>& keys) {
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

 private:
  std::vector<uint8_t> record(const Sequence& s, int key) const {
    float x[kLatent];
    for (int d = 0; d < kLatent; ++d) x[d] = bf16_to_float(s.latent[int64_t{key} * kLatent + d]);
    std::vector<uint8_t> out(latent_bytes(format));
    encode_latent(format, x, scale, out.data());
    return out;
  }
  Doubles stored(const Sequence& s) const {
    Doubles out;
    for (int p = 0; p < s.keys(); ++p) {
      bf16 x[kLatent];
      decode_latent(format, record(s, p).data(), scale, x);
      for (bf16 v : x) out.push_back(bf16_to_float(v));
    }
    return out;
  }
  void write(Memory& memory, const SequenceCache& cache, const Sequence& s) const {
    const PageTable pages = cache.pages(0);
    poison_pages(memory, cache);
    for (int first = 0; first < s.keys(); first += kPageTokens) {
      std::vector<uint8_t> page;
      for (int p = first; p < std::min(first + kPageTokens, s.keys()); ++p) {
        const std::vector<uint8_t> one = record(s, p);
        page.insert(page.end(), one.begin(), one.end());
      }
      memory.upload(pages.latent(first / kPageTokens), page.data(), static_cast<int64_t>(page.size()));
    }
  }
};

}  // namespace perigee::test
