// Inputs of index_select, what a backend selects, and the selection rule word by word over scores in fp64.
#pragma once

#include <limits>
#include <numeric>

#include "ops/reference.h"
#include "ops/stage_arrays.h"

namespace perigee::test {

// Rows are the last `rows` positions of each sequence.
struct IndexCase {
  struct Sequence {
    std::vector<float> key;     // [keys, 128] before the cache format rounds it
    std::vector<float> query;   // [rows, heads, 128] values of bf16, of e4m3 when keys are fp8
    std::vector<float> weight;  // [rows, heads]
    int rows = 0;
    int keys() const { return static_cast<int>(key.size()) / 128; }
  };
  struct Selection {
    std::vector<int32_t> selected;  // [R, top_k]
    std::vector<int32_t> count;     // [R]
    bool operator==(const Selection&) const = default;
  };

  int heads = 2, top_k = 1;
  IndexKeyFormat format = IndexKeyFormat::kBf16;
  std::vector<Sequence> sequences;

  // Keys of small integers; `levels` of them differ, so few levels make plateaus. Sums are exact in fp32, so
  // that ties are ties whatever the order of the sum.
  void add_integers(Random& random, int keys, int rows, int levels) {
    Sequence s{.key = {}, .query = {}, .weight = {}, .rows = rows};
    const std::vector<float> distinct = random.floats(levels * 128, 1.0f);
    for (int p = 0; p < keys; ++p) {
      const int level = random.below(levels);
      for (int d = 0; d < 128; ++d) s.key.push_back(std::round(distinct[level * 128 + d]));
    }
    for (int i = 0; i < rows * heads * 128; ++i) s.query.push_back(static_cast<float>(random.below(5) - 2));
    for (int i = 0; i < rows * heads; ++i) s.weight.push_back(static_cast<float>(random.below(7) - 3));
    sequences.push_back(std::move(s));
  }
  // Normal keys, queries and weights.
  void add(Random& random, int keys, int rows) {
    Sequence s{.key = random.floats(int64_t{keys} * 128),
               .query = {},
               .weight = random.floats(int64_t{rows} * heads),
               .rows = rows};
    for (bf16 x : random.bf16s(int64_t{rows} * heads * 128)) {
      const float q = bf16_to_float(x);
      s.query.push_back(format == IndexKeyFormat::kFp8 ? e4m3_to_float(float_to_e4m3(q)) : q);
    }
    sequences.push_back(std::move(s));
  }
  // Rows [from, from + count) of one sequence as a step of their own: later keys do not exist.
  IndexCase part(int sequence, int from, int count) const {
    IndexCase out = *this;
    const Sequence& s = sequences[sequence];
    const int64_t keys = s.keys() - s.rows + from + count, query = heads * 128;
    out.sequences = {{.key = {s.key.begin(), s.key.begin() + keys * 128},
                      .query = {s.query.begin() + from * query, s.query.begin() + (from + count) * query},
                      .weight = {s.weight.begin() + from * heads, s.weight.begin() + (from + count) * heads},
                      .rows = count}};
    return out;
  }

  // Every cache byte that holds no key is 0xFF.
  Selection run(Backend& backend) const {
    Memory& memory = backend.memory();
    std::vector<SequenceCache> caches;
    AttentionStep step;
    std::vector<bf16> query;
    std::vector<float> weight;
    for (const Sequence& s : sequences) {
      SequenceCache& cache = caches.emplace_back(
          CacheShape{.attention_has_index = {true}, .index_format = format}, memory, s.keys());
      cache.reserve(s.keys());
      write(memory, cache, s);
      step.add(cache, s.rows, s.keys() - s.rows);
      for (float x : s.query) query.push_back(float_to_bf16(x));
      weight.insert(weight.end(), s.weight.begin(), s.weight.end());
    }
    const int64_t rows = static_cast<int64_t>(step.tokens.size());
    const Array<bf16> queries(memory, query);
    const Array<float> weights(memory, weight);
    const Array<int32_t> selected(memory, rows * top_k), count(memory, rows);
    const DsaConfig config{.num_heads = heads, .top_k = top_k, .layers = {0}};
    step.begin(backend);
    backend.index_select({.config = config,
                          .index_query = queries.data(),
                          .index_weight = weights.data(),
                          .sequences = step.sequences,
                          .pages = step.pages[0],
                          .selected = selected.data(),
                          .count = count.data()});
    return {selected.to_host(), count.to_host()};
  }

  // Of the positions that a row sees, over the stored keys; not rounded.
  Doubles scores(const Sequence& s, const Doubles& key, int row) const {
    Doubles out;
    for (int p = 0; p <= s.keys() - s.rows + row; ++p) {
      double sum = 0;
      for (int h = 0; h < heads; ++h) {
        const float* q = &s.query[(int64_t{row} * heads + h) * 128];
        double dot = 0;
        for (int d = 0; d < 128; ++d) dot += q[d] * key[int64_t{p} * 128 + d];
        sum += s.weight[row * heads + h] * (dot > 0 || std::isnan(dot) ? dot : 0);
      }
      out.push_back(sum);
    }
    return out;
  }
  // The keys as readers see them, scale included.
  Doubles stored(const Sequence& s) const {
    Doubles out;
    for (int p = 0; p < s.keys(); ++p) {
      uint8_t values[256], scales[4];
      bf16 x[128];
      encode_index_key(format, &s.key[int64_t{p} * 128], values, scales);
      const double scale = decode_index_key(format, values, scales, x);
      for (bf16 v : x) out.push_back(bf16_to_float(v) * scale);
    }
    return out;
  }

  // A stable sort by descending score, rounded to bf16, with NaN last keeps ties in ascending position: the
  // rule, word by word.
  Selection brute_force() const {
    Selection out;
    for (const Sequence& s : sequences) {
      const Doubles key = stored(s);
      for (int r = 0; r < s.rows; ++r) {
        const Doubles x = rounded(scores(s, key, r));
        std::vector<int32_t> order(x.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
          return std::isnan(x[a]) || std::isnan(x[b]) ? !std::isnan(x[a]) && std::isnan(x[b]) : x[a] > x[b];
        });
        order.resize(std::min<size_t>(order.size(), top_k));
        std::sort(order.begin(), order.end());
        out.count.push_back(static_cast<int32_t>(order.size()));
        order.resize(top_k, -1);
        out.selected.insert(out.selected.end(), order.begin(), order.end());
      }
    }
    return out;
  }

  // How far a selection is from fp64's: the largest amount, over all rows, by which a position left out
  // scores above one selected, relative to the larger of the two.
  double worst_gap(const Selection& got) const {
    double worst = 0;
    int64_t row = 0;
    for (const Sequence& s : sequences) {
      const Doubles key = stored(s);
      for (int r = 0; r < s.rows; ++r, ++row) {
        const Doubles x = scores(s, key, r);
        std::vector<bool> taken(x.size());
        double lowest = INFINITY, highest = -INFINITY;
        for (int i = 0; i < got.count[row]; ++i) {
          const int32_t p = got.selected[row * top_k + i];
          taken[p] = true;
          lowest = std::min(lowest, x[p]);
        }
        for (size_t p = 0; p < x.size(); ++p)
          if (!taken[p]) highest = std::max(highest, x[p]);
        if (highest > lowest)
          worst = std::max(worst, (highest - lowest) / std::max(std::fabs(highest), std::fabs(lowest)));
      }
    }
    return worst;
  }

 private:
  void write(Memory& memory, const SequenceCache& cache, const Sequence& s) const {
    const PageTable pages = cache.pages(0);
    poison_pages(memory, cache);
    for (int first = 0; first < s.keys(); first += kPageTokens) {
      std::vector<uint8_t> page(index_page_bytes(format), 0xFF);
      for (int p = first; p < std::min(first + kPageTokens, s.keys()); ++p) {
        encode_index_key(format, &s.key[int64_t{p} * 128],
                         page.data() + index_value_offset(format, p - first),
                         page.data() + index_scale_offset(format, p - first));
      }
      memory.upload(pages.index_key(first / kPageTokens), page.data(), static_cast<int64_t>(page.size()));
    }
  }
};

// Cases that any backend must select exactly, by name.
struct NamedIndexCase {
  std::string name;
  IndexCase inputs;
};
inline std::vector<NamedIndexCase> exact_index_cases() {
  std::vector<NamedIndexCase> out;
  const auto integers = [](uint32_t seed, int keys, int rows, int top_k, int levels) {
    Random random(seed);
    IndexCase c{.top_k = top_k};
    c.add_integers(random, keys, rows, levels);
    return c;
  };
  for (int keys : {1, 2, 31, 32, 33, 34, 63, 64, 65, 129, 500})
    out.push_back({std::to_string(keys) + " keys", integers(keys, keys, std::min(keys, 3), 32, 1000)});
  for (int levels : {1, 2, 3, 7}) {
    for (int top_k : {1, 8, 64}) {
      out.push_back({std::to_string(levels) + " levels, top " + std::to_string(top_k),
                     integers(100 + levels, 200, 5, top_k, levels)});
    }
  }

  IndexCase nan = integers(7, 90, 4, 16, 1000);
  IndexCase::Sequence& n = nan.sequences[0];
  n.weight.assign(n.weight.size(), -1.0f);  // even the lowest scores come before NaN
  for (int p : {0, 3, 40, 41, 88}) n.key[p * 128 + 5] = std::numeric_limits<float>::quiet_NaN();
  n.query[5] = 1.0f;
  out.push_back({"NaN last", nan});
  n.key.assign(n.key.size(), std::numeric_limits<float>::quiet_NaN());
  out.push_back({"all NaN: the first positions", nan});

  IndexCase infinity = integers(8, 50, 1, 4, 1000);
  IndexCase::Sequence& i = infinity.sequences[0];
  i.query.assign(i.query.size(), 1.0f);
  i.weight = {1.0f, 0.5f};
  for (int d = 0; d < 128; ++d) {
    i.key[20 * 128 + d] = 3e38f;
    i.key[10 * 128 + d] = std::numeric_limits<float>::quiet_NaN();
  }
  out.push_back({"infinity first", infinity});
  i.weight = {-1.0f, -0.5f};
  infinity.top_k = 49;
  out.push_back({"minus infinity before NaN", infinity});
  return out;
}

// A score that underflows to −0 ties with +0: positions 0 and 1 of 0 … 5 come first.
inline IndexCase minus_zero_case() {
  IndexCase c{.heads = 1, .top_k = 2, .format = IndexKeyFormat::kFp8};
  IndexCase::Sequence s{.key = std::vector<float>(6 * 128),
                        .query = std::vector<float>(128, 1.0f),
                        .weight = {-0x1p-100f},
                        .rows = 1};
  for (int d = 0; d < 128; ++d) s.key[0 * 128 + d] = s.key[2 * 128 + d] = 0x1p-60f;  // score −2^−153 → −0
  c.sequences = {s};
  return c;
}

}  // namespace perigee::test
