// MLA: mla_project, mla_query, mla_output.
#include <cstring>
#include <vector>

#include "ops/cpu/backend.h"
#include "ops/cpu/matmul.h"
#include "ops/elementary.h"

namespace perigee::cpu {

void PlainBackend::mla_project(const MlaProjectArgs& a) {
  const MlaWeights& w = a.weights;
  if (w.q_a.weight) matmul_bf16(pool_, w.q_a, a.x, a.rows, a.q_a);
  matmul_bf16(pool_, w.kv_a, a.x, a.rows, a.kv_a);
  if (w.gate.weight) matmul_bf16(pool_, w.gate, a.x, a.rows, a.gate);
  if (w.indexer) {
    matmul_bf16(pool_, w.indexer->k, a.x, a.rows, a.index_key);
    const Linear& head = w.indexer->head_weight;
    matmul(pool_, head, a.x, a.rows,
           [&](int r, int o, float y) { a.index_weight[int64_t{r} * head.out + o] = y; });
  }
}

void PlainBackend::mla_query(const MlaQueryArgs& a) {
  const MlaConfig& c = a.config;
  const int heads = c.num_heads, nope = c.qk_nope_head_dim, rope = c.qk_rope_head_dim, rank = c.kv_lora_rank;
  const int qk = c.qk_head_dim(), latent = c.latent_dim();
  std::vector<bf16> q(int64_t{a.rows} * heads * qk);
  matmul_bf16(pool_, a.weights.q, a.q_input, a.rows, q.data());
  pool_.run(heads, [&](int64_t h) {
    const bf16* w = a.weights.w_uk_t.weight + h * rank * nope;
    for (int r = 0; r < a.rows; ++r) {
      const bf16* in = q.data() + (int64_t{r} * heads + h) * qk;
      bf16* out = a.query + (int64_t{r} * heads + h) * latent;
      for (int o = 0; o < rank; o += 4) {  // rank is a multiple of 32
        float y[4];
        dot_block(in, w + int64_t{o} * nope, nope, nope, 4, a.rows, y);
        for (int i = 0; i < 4; ++i) out[o + i] = float_to_bf16(y[i]);
      }
      std::memcpy(out + rank, in + nope, rope * sizeof(bf16));
    }
  });
  write_latents(a);
}

void PlainBackend::write_latents(const MlaQueryArgs& a) {
  const int rank = a.config.kv_lora_rank, latent = a.config.latent_dim();
  for (size_t s = 0; s < a.sequences.size(); ++s) {
    const SequenceRows& seq = a.sequences[s];
    const PageTable& pages = a.pages[s];
    pool_.run(seq.rows, [&](int64_t i) {
      const bf16* kv = a.kv_a + (seq.first_row + i) * latent;
      std::vector<float> record(latent);
      for (int d = 0; d < latent; ++d) record[d] = bf16_to_float(kv[d]);
      const float scale = rsqrt(sum_of_squares(record.data(), rank) / rank + a.eps);
      for (int d = 0; d < rank; ++d) record[d] = record[d] * scale * a.weights.kv_a_norm[d];
      const int64_t position = seq.start + i;
      uint8_t* page = pages.latent(position / kPageTokens);
      encode_latent(pages.latent_format, record.data(), pages.latent_scale,
                    page + position % kPageTokens * latent_bytes(pages.latent_format));
    });
  }
}

void PlainBackend::mla_output(const MlaOutputArgs& a) {
  const int heads = a.config.num_heads, v = a.config.v_head_dim, rank = a.config.kv_lora_rank;
  std::vector<bf16> o(int64_t{a.rows} * heads * v);
  pool_.run(heads, [&](int64_t h) {
    const bf16* w = a.weights.w_uv.weight + h * v * rank;
    for (int r = 0; r < a.rows; ++r) {
      const int64_t at = (int64_t{r} * heads + h) * v;
      for (int d = 0; d < v; d += 4) {  // v is a multiple of 32
        float y[4];
        dot_block(a.z + (int64_t{r} * heads + h) * rank, w + int64_t{d} * rank, rank, rank, 4, a.rows, y);
        for (int i = 0; i < 4; ++i) {
          if (a.gate) y[i] *= sigmoid(bf16_to_float(a.gate[at + d + i]));
          o[at + d + i] = float_to_bf16(y[i]);
        }
      }
    }
  });
  matmul_lanes(pool_, a.weights.o, o.data(), a.rows, a.lanes, a.partial);
}

}  // namespace perigee::cpu
