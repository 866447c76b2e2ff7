// embed, attn_res_mix, lane_reduce, lm_head: the stages every block shares.
#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/cpu/backend.h"
#include "ops/cpu/matmul.h"
#include "ops/elementary.h"

namespace perigee::cpu {

void PlainBackend::embed(const EmbedArgs& a) {
  for (size_t r = 0; r < a.tokens.size(); ++r) {
    const int64_t token = a.tokens[r] < 0 ? drawn_[row_of_drawn(a.tokens[r])] : a.tokens[r];
    std::memcpy(a.out + r * a.hidden, a.table + token * a.hidden, a.hidden * sizeof(bf16));
  }
}

void PlainBackend::attn_res_mix(const AttnResMixArgs& a) {
  const int sources = static_cast<int>(a.banks.size()) + 1;
  pool_.run(a.rows, [&](int64_t r) {
    std::vector<float> mix(a.hidden, 0.0f);
    std::vector<float> p(sources);
    const auto source = [&](int j) { return (j + 1 < sources ? a.banks[j] : a.stream) + r * a.hidden; };
    if (sources == 1) {
      for (int d = 0; d < a.hidden; ++d) mix[d] = bf16_to_float(source(0)[d]);
    } else {
      for (int j = 0; j < sources; ++j) {
        const bf16* v = source(j);
        const float squares = sum16(a.hidden, [&](int d, float acc) {
          const float x = bf16_to_float(v[d]);
          return std::fma(x, x, acc);
        });
        const float weighted =
            sum16(a.hidden, [&](int d, float acc) { return std::fma(bf16_to_float(v[d]), a.score[d], acc); });
        p[j] = rsqrt(squares / a.hidden + a.eps) * weighted;
      }
      const float top = *std::max_element(p.begin(), p.end());
      float total = 0.0f;
      for (float& s : p) total += s = exp(s - top);
      for (int j = 0; j < sources; ++j) {
        const float weight = p[j] / total;
        const bf16* v = source(j);
        for (int d = 0; d < a.hidden; ++d) mix[d] = std::fma(weight, bf16_to_float(v[d]), mix[d]);
      }
    }
    const float scale = rsqrt(sum_of_squares(mix.data(), a.hidden) / a.hidden + a.eps);
    for (int d = 0; d < a.hidden; ++d) a.out[r * a.hidden + d] = float_to_bf16(mix[d] * scale * a.norm[d]);
  });
}

void PlainBackend::lane_reduce(const LaneReduceArgs& a) {
  pool_.run(a.rows, [&](int64_t r) {
    for (int d = 0; d < a.hidden; ++d) {
      const float* first = a.partial + r * a.hidden + d;
      const bf16 delta = float_to_bf16(reduce_lanes(first, int64_t{a.rows} * a.hidden, a.lanes));
      bf16& p = a.stream[r * a.hidden + d];
      p = a.restart ? delta : float_to_bf16(bf16_to_float(p) + bf16_to_float(delta));
    }
  });
}

void PlainBackend::lm_head(const LmHeadArgs& a) {
  const int rows = static_cast<int>(a.rows.size()), hidden = a.weight.in;
  std::vector<bf16> x(int64_t{rows} * hidden);
  for (int i = 0; i < rows; ++i)
    std::memcpy(&x[int64_t{i} * hidden], a.x + int64_t{a.rows[i]} * hidden, hidden * sizeof(bf16));
  matmul(pool_, a.weight, x.data(), rows,
         [&](int r, int o, float y) { a.logits[int64_t{r} * a.weight.out + o] = y; });
}

}  // namespace perigee::cpu
