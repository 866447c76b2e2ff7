// load_weights: a checked set of named tensors → Weights. Matrices become views into the files; small tensors
// become fp32; kv_b_proj is split into its two halves.
#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/thread_pool.h"
#include "model/checkpoint.h"
#include "model/dummy.h"

namespace perigee {

namespace {

int load_threads() { return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 32u)); }

class Binder {
 public:
  Binder(const TensorSet& set, const ModelConfig& config) : set_(set), c_(config) {}

  Weights bind(int threads) {
    Weights w;
    const std::string model = c_.tensor_prefix + "model.";
    w.embedding = matrix(model + "embed_tokens.weight");
    w.final_norm = vector(model + "norm.weight", c_.hidden_size);
    if (c_.has_attn_res()) w.output_res = attn_res(model + "output_attn_res");
    const std::string head = c_.tensor_prefix + "lm_head.weight";
    w.lm_head = {set_.tensors.contains(head) ? matrix(head) : w.embedding, c_.vocab_size, c_.hidden_size};
    w.layers.resize(c_.num_layers);
    ThreadPool pool(threads);
    pool.run(c_.num_layers, [&](int64_t i) { bind_layer(w.layers[i], static_cast<int>(i)); });
    w.owners = set_.owners;
    w.files = set_.mapped;
    w.owners.insert(w.owners.end(), owners_.begin(), owners_.end());
    return w;
  }

 private:
  const StoredTensor& stored(const std::string& name) const {
    const auto at = set_.tensors.find(name);
    if (at == set_.tensors.end())
      fail(ErrorCode::kInternal, "tensor {} is bound but not in the roster", name);
    return at->second;
  }

  template <typename T>
  T* own(size_t count) {
    auto buffer = std::make_shared<Buffer>(count * sizeof(T));
    T* data = buffer->template as<T>();
    std::lock_guard lock(mutex_);
    owners_.push_back(std::move(buffer));
    return data;
  }

  const bf16* matrix(const std::string& name) {
    const Tensor& t = stored(name).tensor;
    if (reinterpret_cast<uintptr_t>(t.data) % alignof(bf16) == 0) return static_cast<const bf16*>(t.data);
    bf16* copy = own<bf16>(static_cast<size_t>(t.elements()));  // a header of odd length
    std::memcpy(copy, t.data, t.bytes());
    return copy;
  }

  Linear linear(const std::string& name, int out, int in) {
    check(stored(name).tensor.elements() == int64_t{out} * in,
          "a Linear is bound with its shape in the roster");
    return {matrix(name), out, in};
  }

  // The first `count` values in fp32.
  float* vector(const std::string& name, int64_t count) {
    const StoredTensor& s = stored(name);
    check(s.tensor.elements() >= count, "a vector is bound with its length in the roster");
    float* out = own<float>(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const char* at = static_cast<const char*>(s.tensor.data) + i * dtype_size(s.tensor.dtype);
      if (s.tensor.dtype == DType::kF32) {
        std::memcpy(&out[i], at, sizeof(float));
      } else {
        bf16 bits;
        std::memcpy(&bits, at, sizeof bits);
        out[i] = bf16_to_float(bits);
      }
      if (!std::isfinite(out[i]))
        fail(ErrorCode::kBadFile, "tensor {} in {}: element {} is {}; a finite value is needed", name,
             set_.files[s.file], i, out[i]);
    }
    return out;
  }

  AttnResWeights attn_res(const std::string& prefix) {
    float* score = vector(prefix + "_norm.weight", c_.hidden_size);
    const float* proj = vector(prefix + "_proj.weight", c_.hidden_size);
    for (int i = 0; i < c_.hidden_size; ++i) score[i] *= proj[i];
    return {score};
  }

  GluWeights glu(const std::string& prefix, int inter) {
    return {linear(prefix + "gate_proj.weight", inter, c_.hidden_size),
            linear(prefix + "up_proj.weight", inter, c_.hidden_size),
            linear(prefix + "down_proj.weight", c_.hidden_size, inter)};
  }

  void bind_layer(LayerWeights& l, int layer) {
    const std::string p = c_.tensor_prefix + fmt::format("model.layers.{}.", layer);
    l.input_norm = vector(p + "input_layernorm.weight", c_.hidden_size);
    l.post_norm = vector(p + "post_attention_layernorm.weight", c_.hidden_size);
    if (c_.has_attn_res()) {
      l.attn_res = attn_res(p + "self_attention_res");
      l.mlp_res = attn_res(p + "mlp_res");
    }
    if (c_.is_kda[layer])
      l.attention = kda(p + "self_attn.");
    else
      l.attention = mla(p + "self_attn.", c_.is_dsa(layer));
    if (c_.is_moe(layer))
      l.mlp = moe(p + "block_sparse_moe.");
    else
      l.mlp = glu(p + "mlp.", c_.intermediate_size);
  }

  KdaWeights kda(const std::string& p) {
    const int h = c_.hidden_size, dim = c_.kda.head_dim, heads = c_.kda.num_heads, d = heads * dim;
    const int64_t conv = int64_t{d} * c_.kda.conv_kernel;
    KdaWeights w;
    w.q = linear(p + "q_proj.weight", d, h);
    w.k = linear(p + "k_proj.weight", d, h);
    w.v = linear(p + "v_proj.weight", d, h);
    w.conv_q = vector(p + "q_conv1d.weight", conv);
    w.conv_k = vector(p + "k_conv1d.weight", conv);
    w.conv_v = vector(p + "v_conv1d.weight", conv);
    w.f_a = linear(p + "f_a_proj.weight", dim, h);
    w.f_b = linear(p + "f_b_proj.weight", d, dim);
    w.beta = linear(p + "b_proj.weight", heads, h);
    if (c_.kda.full_rank_gate) {
      w.gate = linear(p + "g_proj.weight", d, h);
    } else {
      w.g_a = linear(p + "g_a_proj.weight", dim, h);
      w.g_b = linear(p + "g_b_proj.weight", d, dim);
    }
    w.a_log = vector(p + "A_log", heads);
    w.dt_bias = vector(p + "dt_bias", d);
    w.o_norm = vector(p + "o_norm.weight", dim);
    w.o = linear(p + "o_proj.weight", h, d);
    return w;
  }

  MlaWeights mla(const std::string& p, bool dsa) {
    const MlaConfig& m = c_.mla;
    const int h = c_.hidden_size, heads = m.num_heads;
    MlaWeights w;
    if (m.q_lora_rank > 0) {
      w.q_a = linear(p + "q_a_proj.weight", m.q_lora_rank, h);
      w.q_a_norm = vector(p + "q_a_layernorm.weight", m.q_lora_rank);
      w.q = linear(p + "q_b_proj.weight", heads * m.qk_head_dim(), m.q_lora_rank);
    } else {
      w.q = linear(p + "q_proj.weight", heads * m.qk_head_dim(), h);
    }
    w.kv_a = linear(p + "kv_a_proj_with_mqa.weight", m.latent_dim(), h);
    w.kv_a_norm = vector(p + "kv_a_layernorm.weight", m.kv_lora_rank);
    split_kv_b(w, p + "kv_b_proj.weight");
    if (m.output_gate) w.gate = linear(p + "g_proj.weight", heads * m.v_head_dim, h);
    w.o = linear(p + "o_proj.weight", h, heads * m.v_head_dim);
    if (!dsa) return w;
    const DsaConfig& d = *c_.dsa;
    IndexerWeights indexer;
    indexer.q = linear(p + "indexer.wq_b.weight", d.num_heads * d.head_dim, m.q_lora_rank);
    indexer.k = linear(p + "indexer.wk.weight", d.head_dim, h);
    indexer.head_weight = linear(p + "indexer.weights_proj.weight", d.num_heads, h);
    indexer.k_norm = vector(p + "indexer.k_norm.weight", d.head_dim);
    indexer.k_norm_bias = vector(p + "indexer.k_norm.bias", d.head_dim);
    w.indexer = indexer;
    return w;
  }

  // kv_b holds, head by head, the key rows and then the value rows.
  void split_kv_b(MlaWeights& w, const std::string& name) {
    const MlaConfig& m = c_.mla;
    const size_t rank = m.kv_lora_rank, nope = m.qk_nope_head_dim, value = m.v_head_dim;
    const bf16* from = linear(name, m.num_heads * (m.qk_nope_head_dim + m.v_head_dim), m.kv_lora_rank).weight;
    bf16* uk_t = own<bf16>(m.num_heads * rank * nope);
    bf16* uv = own<bf16>(m.num_heads * value * rank);
    for (int head = 0; head < m.num_heads; ++head) {
      const bf16* keys = from + head * (nope + value) * rank;
      bf16* to = uk_t + head * rank * nope;
      for (size_t n = 0; n < nope; ++n)
        for (size_t r = 0; r < rank; ++r) to[r * nope + n] = keys[n * rank + r];
      std::memcpy(uv + head * value * rank, keys + nope * rank, value * rank * sizeof(bf16));
    }
    w.w_uk_t = {uk_t, m.num_heads * m.kv_lora_rank, m.qk_nope_head_dim};
    w.w_uv = {uv, m.num_heads * m.v_head_dim, m.kv_lora_rank};
  }

  ExpertLinear expert_linear(const std::string& name, int out, int in) {
    if (!c_.mxfp4_experts) return linear(name, out, in);
    return Mxfp4Linear{static_cast<const uint8_t*>(stored(name + "_packed").tensor.data),
                       static_cast<const uint8_t*>(stored(name + "_scale").tensor.data), out, in};
  }

  MoeWeights moe(const std::string& p) {
    const MoeConfig& m = c_.moe;
    const int h = c_.hidden_size, in = m.expert_input_size(h), inter = m.intermediate_size;
    MoeWeights w;
    w.router = linear(p + "gate.weight", m.num_experts, h);
    w.router_bias = vector(p + "gate.e_score_correction_bias", m.num_experts);
    if (m.latent_size > 0) {
      w.latent_down = linear(p + "routed_expert_down_proj.weight", m.latent_size, h);
      w.latent_up = linear(p + "routed_expert_up_proj.weight", h, m.latent_size);
      if (m.latent_norm) w.latent_norm = vector(p + "routed_expert_norm.weight", m.latent_size);
    }
    for (int e = 0; e < m.num_experts; ++e) {
      const std::string expert = p + fmt::format("experts.{}.", e);
      w.experts.push_back({expert_linear(expert + "w1.weight", inter, in),
                           expert_linear(expert + "w3.weight", inter, in),
                           expert_linear(expert + "w2.weight", in, inter)});
    }
    if (m.num_shared_experts > 0) w.shared = glu(p + "shared_experts.", m.shared_intermediate_size());
    return w;
  }

  const TensorSet& set_;
  const ModelConfig& c_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const void>> owners_;
};

// Text-only copies of a multimodal checkpoint drop the prefix, and some add it: the embedding tells which it
// is.
void adopt_prefix(const TensorSet& set, ModelConfig& config) {
  const std::string embedding = "model.embed_tokens.weight", prefix = "language_model.";
  if (set.tensors.contains(config.tensor_prefix + embedding)) return;
  const std::string other = config.tensor_prefix.empty() ? prefix : "";
  if (set.tensors.contains(other + embedding)) config.tensor_prefix = other;
}

}  // namespace

Weights load_weights(const std::string& folder, const ModelConfig& config, const LoadOptions& options) {
  const int threads = load_threads();
  ModelConfig c = config;
  const TensorSet set = options.format == LoadFormat::kDummy
                            ? make_dummy_checkpoint(c, options.seed, threads, options.show_progress)
                            : open_checkpoint(folder, threads, options.show_progress);
  if (options.format == LoadFormat::kAuto) {
    adopt_prefix(set, c);
    check_checkpoint(set, c);
  }
  Weights w = Binder(set, c).bind(threads);
  w.digest = checkpoint_digest(set, threads);
  return w;
}

}  // namespace perigee
