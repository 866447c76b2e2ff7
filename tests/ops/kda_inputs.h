// Inputs of kda_chunk, and the recurrence that it stands for, in fp64: for the tests of every backend.
#pragma once

#include <cmath>
#include <vector>

#include "ops/reference.h"

namespace perigee::test {

// What the recurrence reads, per token and head. Slow, middling and strong decays stand side by side.
struct KdaInputs {
  static constexpr int kHead = 128;
  int tokens, heads;
  std::vector<bf16> conv_input, q, k, v;
  std::vector<float> g, beta;

  KdaInputs(Random& random, int tokens, int heads, bool bounded)
      : tokens(tokens),
        heads(heads),
        conv_input(random.bf16s(int64_t{tokens} * heads * kHead * 3)),
        q(random.bf16s(int64_t{tokens} * heads * kHead)),
        k(q.size()),
        v(random.bf16s(int64_t{tokens} * heads * kHead)),
        g(q.size()),
        beta(int64_t{tokens} * heads) {
    for (int64_t at = 0; at < int64_t{tokens} * heads; ++at) {
      // Keys repeat in part, so that T is far from the identity.
      const std::vector<float> key = random.floats(kHead);
      double norm_q = 0, norm_k = 0;
      std::vector<float> mixed(kHead);
      for (int d = 0; d < kHead; ++d) {
        const float before = at >= 2 * heads ? bf16_to_float(k[(at - 2 * heads) * kHead + d]) * 8 : 0.0f;
        mixed[d] = key[d] + before;
        norm_k += double{mixed[d]} * mixed[d];
        norm_q += std::pow(bf16_to_float(q[at * kHead + d]), 2);
      }
      for (int d = 0; d < kHead; ++d) {
        const int64_t i = at * kHead + d;
        k[i] = float_to_bf16(static_cast<float>(mixed[d] / std::sqrt(norm_k)));
        q[i] = float_to_bf16(static_cast<float>(bf16_to_float(q[i]) / std::sqrt(norm_q * kHead)));
        // Slow, middling and strong decay side by side: channel d mod 4 = 3 loses e^−5 every step when
        // bounded.
        const double u = random.normal(3.0f, d % 4 == 3 ? 60.0f : -4.0f + 3.0f * static_cast<float>(d % 4));
        g[i] = static_cast<float>(bounded ? -5 * sigmoid(u) : -1.5 * softplus(u));
      }
      beta[at] = static_cast<float>(sigmoid(random.normal(1.5f)));
    }
  }
};

// S ← diag(e^g) S; S ← S + β k (v − Sᵀk)ᵀ; o = Sᵀq, in fp64. The state after the last token goes to `state`.
inline Doubles kda_recurrence(const KdaInputs& x, Doubles* state = nullptr) {
  constexpr int kHead = KdaInputs::kHead;
  const int heads = x.heads, D = heads * kHead;
  Doubles out(int64_t{x.tokens} * D), S(int64_t{heads} * kHead * kHead);
  for (int t = 0; t < x.tokens; ++t) {
    for (int h = 0; h < heads; ++h) {
      double* s = &S[int64_t{h} * kHead * kHead];
      const int64_t at = int64_t{t} * D + h * kHead;
      Doubles predicted(kHead);
      for (int d = 0; d < kHead; ++d) {
        const double decay = std::exp(double{x.g[at + d]}), k = bf16_to_float(x.k[at + d]);
        for (int c = 0; c < kHead; ++c) {
          s[d * kHead + c] *= decay;
          predicted[c] += k * s[d * kHead + c];
        }
      }
      for (int d = 0; d < kHead; ++d) {
        const double bk = x.beta[t * heads + h] * double{bf16_to_float(x.k[at + d])};
        const double q = bf16_to_float(x.q[at + d]);
        for (int c = 0; c < kHead; ++c) {
          s[d * kHead + c] += bk * (bf16_to_float(x.v[at + c]) - predicted[c]);
          out[at + c] += q * s[d * kHead + c];
        }
      }
    }
  }
  if (state) *state = S;
  return out;
}

}  // namespace perigee::test
