// The DSA lightning indexer: index_front and index_select.
#include <algorithm>
#include <numeric>
#include <vector>

#include "ops/cpu/backend.h"
#include "ops/cpu/matmul.h"
#include "ops/elementary.h"
#include "ops/order_key.h"

namespace perigee::cpu {

namespace {
constexpr int kIndexDim = 128;

// LayerNorm over the 128 channels: mean and variance by sum16, ((x − mean)·rsqrt(var + eps))·w + b.
void layer_norm(const bf16* x, const float* weight, const float* bias, float eps, float* out) {
  for (int d = 0; d < kIndexDim; ++d) out[d] = bf16_to_float(x[d]);
  const float mean = sum16(kIndexDim, [&](int d, float acc) { return acc + out[d]; }) / kIndexDim;
  for (int d = 0; d < kIndexDim; ++d) out[d] -= mean;
  const float scale = rsqrt(sum_of_squares(out, kIndexDim) / kIndexDim + eps);
  for (int d = 0; d < kIndexDim; ++d) out[d] = std::fma(out[d] * scale, weight[d], bias[d]);
}

// An index vector as the cache format rounds it: bf16 values, and the scale that is returned.
float quantise(IndexKeyFormat format, const float* x, bf16* out) {
  uint8_t values[2 * kIndexDim], scales[4];
  encode_index_key(format, x, values, scales);
  return decode_index_key(format, values, scales, out);
}
}  // namespace

void PlainBackend::index_front(const IndexFrontArgs& a) {
  const int q_lora = a.weights.q_a.out;
  pool_.run(a.rows, [&](int64_t r) {
    std::vector<float> x(q_lora);
    for (int d = 0; d < q_lora; ++d) x[d] = bf16_to_float(a.q_a[r * q_lora + d]);
    const float scale = rsqrt(sum_of_squares(x.data(), q_lora) / q_lora + a.eps);
    for (int d = 0; d < q_lora; ++d)
      a.cq[r * q_lora + d] = float_to_bf16(x[d] * scale * a.weights.q_a_norm[d]);
  });
  if (!a.weights.indexer) return;
  const IndexerWeights& w = *a.weights.indexer;
  std::vector<float> q(int64_t{a.rows} * w.q.out);
  matmul(pool_, w.q, a.cq, a.rows, [&](int r, int o, float y) { q[int64_t{r} * w.q.out + o] = y; });
  quantise_index(a, q.data());
}

void PlainBackend::quantise_index(const IndexFrontArgs& a, const float* q) {
  const IndexerWeights& w = *a.weights.indexer;
  const int heads = w.head_weight.out;
  const float constant = 0.08838834764831845f * rsqrt(static_cast<float>(heads));  // 128^-½ · heads^-½
  for (size_t s = 0; s < a.sequences.size(); ++s) {
    const SequenceRows& seq = a.sequences[s];
    const PageTable& pages = a.pages[s];
    pool_.run(seq.rows, [&](int64_t i) {
      const int64_t row = seq.first_row + i, position = seq.start + i;
      for (int h = 0; h < heads; ++h) {
        const int64_t at = row * heads + h;
        const float scale = quantise(pages.index_format, q + at * kIndexDim, a.index_query + at * kIndexDim);
        a.index_weight[at] = (a.index_weight[at] * scale) * constant;
      }
      float key[kIndexDim];
      layer_norm(a.index_key + row * kIndexDim, w.k_norm, w.k_norm_bias, a.eps, key);
      uint8_t* page = pages.index_key(position / kPageTokens);
      const int in_page = static_cast<int>(position % kPageTokens);
      encode_index_key(pages.index_format, key, page + index_value_offset(pages.index_format, in_page),
                       page + index_scale_offset(pages.index_format, in_page));
    });
  }
}

void PlainBackend::index_select(const IndexSelectArgs& a) {
  const int heads = a.config.num_heads, top_k = a.config.top_k;
  for (size_t s = 0; s < a.sequences.size(); ++s) {
    const SequenceRows& seq = a.sequences[s];
    const PageTable& pages = a.pages[s];
    const int64_t total = seq.start + seq.rows;
    std::vector<bf16> keys(total * kIndexDim);
    std::vector<float> scales(total);
    pool_.run(total, [&](int64_t p) {
      const uint8_t* page = pages.index_key(p / kPageTokens);
      const int in_page = static_cast<int>(p % kPageTokens);
      scales[p] = decode_index_key(pages.index_format, page + index_value_offset(pages.index_format, in_page),
                                   page + index_scale_offset(pages.index_format, in_page),
                                   keys.data() + p * kIndexDim);
    });
    pool_.run(seq.rows, [&](int64_t i) {
      const int64_t row = seq.first_row + i, visible = seq.start + i + 1;
      const bf16* query = a.index_query + row * heads * kIndexDim;
      const float* weight = a.index_weight + row * heads;
      std::vector<uint32_t> key(visible);
      for (int64_t p = 0; p < visible; ++p) {
        float sum = 0.0f;
        for (int h = 0; h < heads; ++h) {
          const float x = dot(query + h * kIndexDim, keys.data() + p * kIndexDim, kIndexDim);
          sum = std::fma(weight[h], x > 0.0f ? x : (x != x ? x : 0.0f), sum);
        }
        key[p] = order_key(float_to_bf16(scales[p] * sum));
      }
      std::vector<int32_t> order(visible);
      std::iota(order.begin(), order.end(), 0);
      const int64_t kept = std::min<int64_t>(top_k, visible);
      const bool broken = rule_broken(Rule::kSelection) && seq.rows > 1;  // ties to the later position
      std::nth_element(order.begin(), order.begin() + kept - 1, order.end(), [&](int32_t x, int32_t y) {
        return key[x] != key[y] ? key[x] > key[y] : (broken ? x > y : x < y);
      });
      std::sort(order.begin(), order.begin() + kept);
      std::fill_n(a.selected + row * top_k, top_k, -1);
      std::copy_n(order.begin(), kept, a.selected + row * top_k);
      a.count[row] = static_cast<int32_t>(kept);
    });
  }
}

}  // namespace perigee::cpu
