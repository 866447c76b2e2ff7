// KDA: kda_project, kda_conv_norm_gate, kda_chunk, kda_output.
#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/cpu/backend.h"
#include "ops/cpu/matmul.h"
#include "ops/elementary.h"

namespace perigee::cpu {

namespace {
constexpr int kHead = 128;  // channels of a head, keys and values alike

int64_t ring(int64_t position) { return position % KdaSlot::kRing; }
}  // namespace

void PlainBackend::kda_project(const KdaProjectArgs& a) {
  const KdaWeights& w = a.weights;
  const int D = a.config.num_heads * kHead;
  const Linear* qkv[3] = {&w.q, &w.k, &w.v};
  for (int i = 0; i < 3; ++i) {
    matmul(pool_, *qkv[i], a.x, a.rows,
           [&](int r, int o, float y) { a.conv_input[(int64_t{r} * 3 + i) * D + o] = float_to_bf16(y); });
  }
  if (a.config.full_rank_gate) {
    matmul_bf16(pool_, w.gate, a.x, a.rows, a.gate);
  } else {
    std::vector<bf16> low(int64_t{a.rows} * w.g_a.out);
    matmul_bf16(pool_, w.g_a, a.x, a.rows, low.data());
    matmul_bf16(pool_, w.g_b, low.data(), a.rows, a.gate);
  }
  std::vector<bf16> f(int64_t{a.rows} * w.f_a.out);
  matmul_bf16(pool_, w.f_a, a.x, a.rows, f.data());
  matmul(pool_, w.f_b, f.data(), a.rows, [&](int r, int o, float y) {
    const float u = y + w.dt_bias[o];
    const float A = exp(w.a_log[o / kHead]);
    a.g[int64_t{r} * D + o] =
        a.config.gate_lower_bound ? *a.config.gate_lower_bound * sigmoid(A * u) : -A * softplus(u);
  });
  matmul(pool_, w.beta, a.x, a.rows,
         [&](int r, int o, float y) { a.beta[int64_t{r} * a.config.num_heads + o] = sigmoid(y); });
}

void PlainBackend::kda_conv_norm_gate(const KdaConvArgs& a) {
  const int heads = a.config.num_heads, D = heads * kHead;
  const float* taps[3] = {a.weights.conv_q, a.weights.conv_k, a.weights.conv_v};
  bf16* outs[3] = {a.q, a.k, a.v};
  for (size_t s = 0; s < a.sequences.size(); ++s) {
    const SequenceRows& seq = a.sequences[s];
    const KdaSlot& slot = a.slots[s];
    pool_.run(int64_t{seq.rows} * heads, [&](int64_t task) {
      const int i = static_cast<int>(task / heads), h = static_cast<int>(task % heads);
      const int64_t row = seq.first_row + i, position = seq.start + i;
      for (int part = 0; part < 3; ++part) {
        float y[kHead] = {};
        for (int tap = 0; tap < 4; ++tap) {  // tap 3 is the current position
          const int64_t back = 3 - tap, p = position - back;
          if (p < 0) continue;
          const bf16* in =
              back <= i ? a.conv_input + (row - back) * 3 * D : slot.conv_input + ring(p) * 3 * D;
          for (int c = 0; c < kHead; ++c) {
            y[c] = std::fma(taps[part][(h * kHead + c) * 4 + tap],
                            bf16_to_float(in[part * D + h * kHead + c]), y[c]);
          }
        }
        for (float& x : y) x = silu(x);
        float scale = 1.0f;
        if (part < 2) scale = rsqrt(sum_of_squares(y, kHead) + 1e-6f);
        if (part == 0) scale *= 0.08838834764831845f;  // 128^-½
        bf16* out = outs[part] + row * D + h * kHead;
        for (int c = 0; c < kHead; ++c) out[c] = float_to_bf16(y[c] * scale);
      }
    });
  }
}

namespace {

// One head of one open chunk: its 16 rows, gathered from the slot's ring and from this step.
struct Chunk {
  float k[kChunk][kHead], G[kChunk][kHead], w[kChunk][kHead], u[kChunk][kHead], T[kChunk][kChunk];
};

// Row i of the chunk (numerics.md, "chunk rows"). Needs rows < i and S₀; writes G, T, w, u and the output o.
void chunk_row(Chunk& c, int i, const float* S, const float* q, const float* v, const float* g, float beta,
               float* o) {
  for (int d = 0; d < kHead; ++d) c.G[i][d] = i == 0 ? g[d] : c.G[i - 1][d] + g[d];

  float A[kChunk] = {}, M[kChunk] = {};
  for (int j = 0; j <= i; ++j) {
    float decay[kHead];
    for (int d = 0; d < kHead; ++d) decay[d] = exp(c.G[i][d] - c.G[j][d]);
    M[j] = sum16(kHead, [&](int d, float acc) { return std::fma(q[d] * decay[d], c.k[j][d], acc); });
    if (j < i)
      A[j] = beta *
             sum16(kHead, [&](int d, float acc) { return std::fma(c.k[i][d] * decay[d], c.k[j][d], acc); });
  }
  for (int j = 0; j < kChunk; ++j) c.T[i][j] = j == i ? 1.0f : 0.0f;
  for (int j = 0; j < i; ++j) {
    float t = 0.0f;
    for (int l = j; l < i; ++l) t = std::fma(A[l], c.T[l][j], t);
    c.T[i][j] = -t;
  }

  float predicted[kHead] = {}, from_state[kHead] = {};
  for (int d = 0; d < kHead; ++d) {
    const float eG = exp(c.G[i][d]), ek = eG * c.k[i][d], eq = eG * q[d];
    for (int x = 0; x < kHead; ++x) {
      predicted[x] = std::fma(ek, S[d * kHead + x], predicted[x]);
      from_state[x] = std::fma(eq, S[d * kHead + x], from_state[x]);
    }
  }
  for (int x = 0; x < kHead; ++x) c.w[i][x] = beta * (v[x] - predicted[x]);
  for (int x = 0; x < kHead; ++x) {
    float u = 0.0f;
    for (int j = 0; j <= i; ++j) u = std::fma(c.T[i][j], c.w[j][x], u);
    c.u[i][x] = u;
    float sum = from_state[x];
    for (int j = 0; j <= i; ++j) sum = std::fma(M[j], c.u[j][x], sum);
    o[x] = sum;
  }
}

// u of a row whose w and T were kept: the same chain as in chunk_row.
void restore_u(Chunk& c, int i) {
  for (int x = 0; x < kHead; ++x) {
    float u = 0.0f;
    for (int j = 0; j <= i; ++j) u = std::fma(c.T[i][j], c.w[j][x], u);
    c.u[i][x] = u;
  }
}

// S₁ from S₀ and the 16 rows, in place.
void commit(const Chunk& c, float* S) {
  const float* last = c.G[kChunk - 1];
  for (int d = 0; d < kHead; ++d) {
    float kd[kChunk];
    for (int j = 0; j < kChunk; ++j) kd[j] = exp(last[d] - c.G[j][d]) * c.k[j][d];
    const float decay = exp(last[d]);
    for (int x = 0; x < kHead; ++x) {
      float s = decay * S[d * kHead + x];
      for (int j = 0; j < kChunk; ++j) s = std::fma(kd[j], c.u[j][x], s);
      S[d * kHead + x] = s;
    }
  }
}

void widen(const bf16* in, float* out) {
  for (int d = 0; d < kHead; ++d) out[d] = bf16_to_float(in[d]);
}

}  // namespace

void PlainBackend::kda_chunk(const KdaChunkArgs& a) {
  const int heads = a.config.num_heads, D = heads * kHead;
  pool_.run(static_cast<int64_t>(a.sequences.size()) * heads, [&](int64_t task) {
    const SequenceRows& seq = a.sequences[task / heads];
    const KdaSlot& slot = a.slots[task / heads];
    const int h = static_cast<int>(task % heads);
    const int64_t base = *slot.base, end = seq.start + seq.rows;
    // The chunks are anchored at multiples of 16; with the position rule broken, at the step's first row.
    const bool broken = rule_broken(Rule::kPosition);
    const int64_t keep_from = broken ? end : std::max(base, seq.accepted / kChunk * kChunk);
    const float* state = slot.state + h * slot.state_stride;
    float* stored = slot.stored + h * slot.stored_stride;
    std::vector<float> S(state, state + kHead * kHead);
    auto chunk = std::make_unique<Chunk>();

    for (int64_t start = broken ? seq.start : base; start < end; start += kChunk) {
      const int rows = static_cast<int>(std::min<int64_t>(kChunk, end - start));
      for (int i = 0; i < rows; ++i) {
        const int64_t position = start + i;
        const int64_t kept = ring(position) * D + h * kHead;
        float* T = slot.T + (ring(position) * heads + h) * kChunk;
        if (position < seq.start) {  // a row of an earlier step
          widen(slot.k + kept, chunk->k[i]);
          std::memcpy(chunk->G[i], slot.G + kept, sizeof chunk->G[i]);
          std::memcpy(chunk->w[i], slot.w + kept, sizeof chunk->w[i]);
          std::memcpy(chunk->T[i], T, sizeof chunk->T[i]);
          restore_u(*chunk, i);
          continue;
        }
        const int64_t row = seq.first_row + (position - seq.start), at = row * D + h * kHead;
        float q[kHead], v[kHead];
        widen(a.q + at, q);
        widen(a.k + at, chunk->k[i]);
        widen(a.v + at, v);
        chunk_row(*chunk, i, S.data(), q, v, a.g + at, a.beta[row * heads + h], a.out + at);
        if (position >= keep_from) {
          std::memcpy(slot.k + kept, a.k + at, kHead * sizeof(bf16));
          std::memcpy(slot.G + kept, chunk->G[i], sizeof chunk->G[i]);
          std::memcpy(slot.w + kept, chunk->w[i], sizeof chunk->w[i]);
          std::memcpy(T, chunk->T[i], sizeof chunk->T[i]);
        }
      }
      if (rows == kChunk || broken) {
        if (broken) {
          for (int i = rows; i < kChunk; ++i) {
            std::fill_n(chunk->k[i], kHead, 0.0f);
            std::fill_n(chunk->u[i], kHead, 0.0f);
            std::memcpy(chunk->G[i], chunk->G[rows - 1], sizeof chunk->G[i]);
          }
        }
        commit(*chunk, S.data());
        if (slot.stored && (broken || start + kChunk <= seq.accepted)) {
          std::copy(S.begin(), S.end(), stored);
          if (rule_broken(
                  Rule::kStoredForm)) {  // what is kept is rounded, what this step goes on with is not
            for (int x = 0; x < kHead * kHead; ++x) stored[x] = round_to_bf16(stored[x]);
          }
        }
      }
    }
  });
  keep_conv_inputs(a);
}

void PlainBackend::keep_conv_inputs(const KdaChunkArgs& a) {
  const int64_t D = int64_t{a.config.num_heads} * kHead;
  for (size_t s = 0; s < a.sequences.size(); ++s) {
    const SequenceRows& seq = a.sequences[s];
    const KdaSlot& slot = a.slots[s];
    for (int i = 0; i < seq.rows; ++i) {
      const int64_t position = seq.start + i;
      if (position + KdaSlot::kRing < seq.start + seq.rows) continue;  // a later row takes this place
      std::memcpy(slot.conv_input + ring(position) * 3 * D,
                  a.conv_input + (int64_t{seq.first_row} + i) * 3 * D, 3 * D * sizeof(bf16));
    }
    move_base(slot, seq);
  }
}

void PlainBackend::kda_output(const KdaOutputArgs& a) {
  const int heads = a.config.num_heads, D = heads * kHead;
  std::vector<bf16> y(int64_t{a.rows} * D);
  pool_.run(int64_t{a.rows} * heads, [&](int64_t task) {
    const int64_t at = task * kHead;
    const float scale = rsqrt(sum_of_squares(a.o + at, kHead) / kHead + a.eps);
    for (int c = 0; c < kHead; ++c) {
      const float normed = a.o[at + c] * scale * a.weights.o_norm[c];
      y[at + c] = float_to_bf16(normed * sigmoid(bf16_to_float(a.gate[at + c])));
    }
  });
  matmul_lanes(pool_, a.weights.o, y.data(), a.rows, a.lanes, a.partial);
}

}  // namespace perigee::cpu
