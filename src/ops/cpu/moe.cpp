// Dense MLP and mixture of experts: glu_mlp, moe_route, moe_experts, moe_combine.
#include <algorithm>
#include <numeric>
#include <vector>

#include "formats/mxfp4.h"
#include "ops/cpu/backend.h"
#include "ops/cpu/matmul.h"
#include "ops/elementary.h"

namespace perigee::cpu {

namespace {

float activate(const ActivationParams& p, float gate, float up) {
  if (p.kind == Activation::kSilu) return silu(gate) * up;
  const float clipped_gate = p.beta * tanh(gate / p.beta) * sigmoid(gate);
  return clipped_gate * (p.linear_beta > 0.0f ? p.linear_beta * tanh(up / p.linear_beta) : up);
}

// Row `o` of an expert matrix as bf16: a view, or MXFP4 decoded (exactly) into `buffer`.
const bf16* expert_row(const ExpertLinear& w, int o, std::vector<bf16>& buffer) {
  if (const auto* dense = std::get_if<Linear>(&w)) return dense->weight + int64_t{o} * dense->in;
  const auto& packed = std::get<Mxfp4Linear>(w);
  buffer.resize(packed.in);
  const uint8_t* nibbles = packed.packed + int64_t{o} * (packed.in / 2);
  const uint8_t* scales = packed.scale + int64_t{o} * (packed.in / kMxfp4Block);
  for (int i = 0; i < packed.in; i += kMxfp4Block) {
    const uint8_t scale_code = scales[i / kMxfp4Block];
    // 2^-127 is subnormal and counts as zero; written out, because a compiler that folds it would not flush
    // it.
    const float scale = scale_code == 0 ? 0.0f : e8m0_to_float(scale_code);
    bf16 value[16];  // of each code, in this block
    for (uint32_t code = 0; code < 16; ++code) value[code] = float_to_bf16(e2m1_to_float(code) * scale);
    for (int j = 0; j < kMxfp4Block; j += 2) {
      const uint8_t pair = nibbles[(i + j) / 2];
      buffer[i + j] = value[pair & 15];
      buffer[i + j + 1] = value[pair >> 4];
    }
  }
  return buffer.data();
}

}  // namespace

void PlainBackend::glu_mlp(const GluMlpArgs& a) {
  const int inter = a.weights.gate.out;
  std::vector<float> gate(int64_t{a.rows} * inter);
  std::vector<bf16> act(int64_t{a.rows} * inter);
  matmul(pool_, a.weights.gate, a.x, a.rows,
         [&](int r, int o, float y) { gate[int64_t{r} * inter + o] = y; });
  matmul(pool_, a.weights.up, a.x, a.rows, [&](int r, int o, float y) {
    act[int64_t{r} * inter + o] = float_to_bf16(activate(a.activation, gate[int64_t{r} * inter + o], y));
  });
  matmul_lanes(pool_, a.weights.down, act.data(), a.rows, a.lanes, a.partial);
}

void PlainBackend::moe_route(const MoeRouteArgs& a) {
  const int experts = a.config.num_experts;
  std::vector<float> score(int64_t{a.rows} * experts);
  matmul(pool_, a.weights.router, a.x, a.rows,
         [&](int r, int o, float y) { score[int64_t{r} * experts + o] = sigmoid(y); });
  choose_experts(a, score.data());
  if (a.config.latent_size) matmul_bf16(pool_, a.weights.latent_down, a.x, a.rows, a.z);
}

void PlainBackend::choose_experts(const MoeRouteArgs& a, const float* score) {
  const int experts = a.config.num_experts, k = a.config.experts_per_token;
  pool_.run(a.rows, [&](int64_t r) {
    const float* s = score + r * experts;
    std::vector<int32_t> order(experts);
    std::iota(order.begin(), order.end(), 0);
    const auto choice = [&](int e) {
      const float c = s[e] + a.weights.router_bias[e];
      return c == c ? c : -std::numeric_limits<float>::infinity();  // NaN last
    };
    std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int32_t x, int32_t y) {
      return choice(x) != choice(y) ? choice(x) > choice(y) : x < y;
    });
    std::sort(order.begin(), order.begin() + k);
    float total = 0.0f;
    for (int i = 0; i < k; ++i) total += s[order[i]];
    for (int i = 0; i < k; ++i) {
      const float w = a.config.renormalize ? s[order[i]] / (total + 1e-20f) : s[order[i]];
      a.experts[r * k + i] = order[i];
      a.expert_weight[r * k + i] = w * a.config.routed_scaling_factor;
    }
  });
}

void PlainBackend::moe_experts(const MoeExpertsArgs& a) {
  const int k = a.config.experts_per_token, experts = a.config.num_experts,
            inter = a.config.intermediate_size;
  const int lanes = a.lanes_expert ? 1 : a.lanes, block = inter / lanes;
  // Rows by expert, so that each weight row is read and decoded once.
  std::vector<std::vector<int>> users(experts);  // entries row·k + slot
  for (int i = 0; i < a.rows * k; ++i) users[a.experts[i]].push_back(i);
  std::vector<int> active;
  for (int e = 0; e < experts; ++e) {
    if (!users[e].empty()) active.push_back(e);
  }
  std::vector<bf16> act(int64_t{a.rows} * k * inter);
  std::vector<bf16> down(int64_t{a.rows} * k * lanes * a.in);  // [row·k + slot, lane, in]
  constexpr int kTask = 32;
  const int inter_tasks = (inter + kTask - 1) / kTask, in_tasks = (a.in + kTask - 1) / kTask;
  pool_.run(static_cast<int64_t>(active.size()) * inter_tasks, [&](int64_t task) {
    const int e = active[task / inter_tasks], begin = static_cast<int>(task % inter_tasks) * kTask;
    std::vector<bf16> gate_buffer, up_buffer;
    for (int o = begin; o < std::min(inter, begin + kTask); ++o) {
      const bf16* gate = expert_row(a.weights.experts[e].gate, o, gate_buffer);
      const bf16* up = expert_row(a.weights.experts[e].up, o, up_buffer);
      for (int user : users[e]) {
        const bf16* z = a.z + int64_t{user / k} * a.in;
        act[int64_t{user} * inter + o] =
            float_to_bf16(activate(a.activation, dot(z, gate, a.in), dot(z, up, a.in)));
      }
    }
  });
  pool_.run(static_cast<int64_t>(active.size()) * in_tasks, [&](int64_t task) {
    const int e = active[task / in_tasks], begin = static_cast<int>(task % in_tasks) * kTask;
    std::vector<bf16> buffer;
    for (int o = begin; o < std::min(a.in, begin + kTask); ++o) {
      const bf16* row = expert_row(a.weights.experts[e].down, o, buffer);
      for (int user : users[e]) {
        for (int lane = 0; lane < lanes; ++lane) {
          const float y = dot(act.data() + int64_t{user} * inter + lane * block, row + lane * block, block);
          down[(int64_t{user} * lanes + lane) * a.in + o] = float_to_bf16(y);
        }
      }
    }
  });
  const int experts_per_lane = a.lanes_expert ? experts / a.lanes : experts;
  pool_.run(int64_t{a.lanes} * a.rows, [&](int64_t task) {
    const int lane = static_cast<int>(task / a.rows), r = static_cast<int>(task % a.rows);
    float* y = a.partial + task * a.in;
    std::fill_n(y, a.in, 0.0f);
    for (int i = 0; i < k; ++i) {  // ascending expert id
      const int user = r * k + i;
      if (a.lanes_expert && a.experts[user] / experts_per_lane != lane) continue;
      const bf16* partial = down.data() + (int64_t{user} * lanes + (a.lanes_expert ? 0 : lane)) * a.in;
      for (int d = 0; d < a.in; ++d) y[d] = std::fma(a.expert_weight[user], bf16_to_float(partial[d]), y[d]);
    }
  });
}

void PlainBackend::moe_combine(const MoeCombineArgs& a) {
  const bool latent = a.config.latent_size > 0;
  const int in = a.config.expert_input_size(a.hidden);
  const auto tree = [&](const float* partial, int64_t r, int width, int d) {
    return reduce_lanes(partial + r * width + d, int64_t{a.rows} * width, a.lanes);
  };
  std::vector<float> routed(int64_t{a.rows} * a.hidden);
  if (latent) {
    std::vector<bf16> y(int64_t{a.rows} * in);
    pool_.run(a.rows, [&](int64_t r) {
      std::vector<float> sum(in);
      for (int d = 0; d < in; ++d) sum[d] = tree(a.routed, r, in, d);
      const float scale = a.config.latent_norm ? rsqrt(sum_of_squares(sum.data(), in) / in + a.eps) : 1.0f;
      for (int d = 0; d < in; ++d) {
        y[r * in + d] =
            float_to_bf16(a.config.latent_norm ? sum[d] * scale * a.weights.latent_norm[d] : sum[d]);
      }
    });
    matmul(pool_, a.weights.latent_up, y.data(), a.rows,
           [&](int r, int o, float v) { routed[int64_t{r} * a.hidden + o] = v; });
  } else {
    pool_.run(a.rows, [&](int64_t r) {
      for (int d = 0; d < in; ++d) routed[r * in + d] = tree(a.routed, r, in, d);
    });
  }
  pool_.run(a.rows, [&](int64_t r) {
    for (int d = 0; d < a.hidden; ++d) {
      const float shared = a.shared ? tree(a.shared, r, a.hidden, d) : 0.0f;
      bf16& p = a.stream[r * a.hidden + d];
      const bf16 delta = float_to_bf16(routed[r * a.hidden + d] + shared);
      p = float_to_bf16(bf16_to_float(p) + bf16_to_float(delta));
    }
  });
}

}  // namespace perigee::cpu
