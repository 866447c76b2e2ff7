"""What an eager bf16 PyTorch run of the model would give, emulated in numpy: the yardstick for the engine's error.

Every operation's output is rounded to bf16, sums are fp32; what public PyTorch code keeps in fp32 (norm statistics, decay,
the KDA state, softmax, index scores, the router, AttnRes) is fp32 here too. torch_bf16.py is the same program in PyTorch.
"""

import numpy as np

from . import config as configs, dsa, kda, moe
from .checkpoint import Checkpoint
from .ops import layer_norm, rms_norm as exact_rms_norm, sigmoid, silu, situ_glu, softmax
from .tensor_file import round_bf16 as r
from .trace import Trace


def linear(x, w):
    return r(x @ w.T)


def rms_norm(x, weight, eps):
    return r(weight * r(exact_rms_norm(x, np.float32(1), eps)))


def glu(gate, up, config):
    if config.situ:
        return r(situ_glu(gate, up, config.situ_beta, config.situ_linear_beta))
    return r(r(silu(gate)) * up)


def mlp(x, weight, config):
    hidden = glu(linear(x, weight("gate_proj.weight")), linear(x, weight("up_proj.weight")), config)
    return linear(hidden, weight("down_proj.weight"))


def kda_layer(h, weight, config, conv_in_fp32):
    by_head = (len(h), config.kda_heads, config.kda_dim)

    def branch(name):
        taps = weight(f"{name}_conv1d.weight")
        x = kda.short_conv(linear(h, weight(f"{name}_proj.weight")), taps.reshape(taps.shape[0], -1))
        return r(silu(x if conv_in_fp32 else r(x))).reshape(by_head)

    q = kda.l2_norm(branch("q")) * config.kda_dim**-0.5
    k, v = kda.l2_norm(branch("k")), branch("v")
    u = linear(linear(h, weight("f_a_proj.weight")), weight("f_b_proj.weight")) + weight("dt_bias").reshape(-1)
    a_log = weight("A_log").reshape(-1)[: config.kda_heads]
    g = kda.log_decay(u.reshape(by_head), a_log, config.gate_lower_bound)
    beta = r(sigmoid(linear(h, weight("b_proj.weight"))))
    state = np.zeros((config.kda_heads, config.kda_dim, config.kda_dim), np.float32)
    out = r(kda.recurrence(q, k, v, g, beta, state)[0])
    if config.full_rank_gate:
        gate = linear(h, weight("g_proj.weight"))
    else:
        gate = linear(linear(h, weight("g_a_proj.weight")), weight("g_b_proj.weight"))
    out = exact_rms_norm(out, weight("o_norm.weight"), config.eps).reshape(len(h), -1) * sigmoid(gate)
    return linear(r(out), weight("o_proj.weight"))


def round_e4m3(x):
    """x rounded to the nearest e4m3 value (ties to even), |x| <= 448."""
    exponent = np.maximum(np.frexp(x)[1] - 1, -6)
    step = np.exp2(exponent - 3).astype(np.float32)
    return np.round(x / step) * step


def quantise_e4m3(x):
    """Per last-axis vector: e4m3 codes times an fp32 scale amax/448."""
    scale = np.maximum(np.max(np.abs(x), axis=-1, keepdims=True), np.float32(1e-30)) / np.float32(448)
    return round_e4m3(x / scale) * scale


def index_scores(h, cq, weight, config, fp8):
    q = linear(cq, weight("wq_b.weight")).reshape(len(h), config.index_heads, config.index_dim)
    k = layer_norm(linear(h, weight("wk.weight")), weight("k_norm.weight"), weight("k_norm.bias"), config.eps)
    head_weight = linear(h, weight("weights_proj.weight"))
    if fp8:
        return r(dsa.scores(quantise_e4m3(q), quantise_e4m3(k), head_weight))
    return dsa.scores(q, r(k), head_weight)


def mla_layer(h, weight, config, is_dsa, selected, fp8_index):
    tokens, heads = len(h), config.heads
    if config.q_lora:
        cq = rms_norm(linear(h, weight("q_a_proj.weight")), weight("q_a_layernorm.weight"), config.eps)
        q = linear(cq, weight("q_b_proj.weight"))
    else:
        q = linear(h, weight("q_proj.weight"))
    q = q.reshape(tokens, heads, config.nope + config.rope)
    latent, k_shared = np.split(linear(h, weight("kv_a_proj_with_mqa.weight")), [config.kv_lora], axis=-1)
    latent = rms_norm(latent, weight("kv_a_layernorm.weight"), config.eps)
    kv = linear(latent, weight("kv_b_proj.weight")).reshape(tokens, heads, config.nope + config.v_dim)
    k_nope, v = np.split(kv, [config.nope], axis=-1)
    k = np.concatenate([k_nope, np.broadcast_to(k_shared[:, None], (tokens, heads, config.rope))], axis=-1)

    mask = np.tri(tokens, dtype=bool)
    if is_dsa:
        if selected is None:
            own = index_scores(h, cq, lambda name: weight(f"indexer.{name}"), config, fp8_index)
            selected = dsa.select(own, config.top_k)
        mask &= dsa.allowed(selected, tokens)
    out = np.empty_like(v)
    scale = (config.nope + config.rope) ** -0.5
    for i in range(heads):
        logits = np.where(mask, r(r(q[:, i] @ k[:, i].T) * scale), np.float32(-np.inf))
        out[:, i] = r(r(softmax(logits)) @ v[:, i])
    out = out.reshape(tokens, -1)
    if config.output_gate:
        out = r(out * r(sigmoid(linear(h, weight("g_proj.weight")))))
    return linear(out, weight("o_proj.weight")), selected


def moe_layer(h, weight, config, experts):
    scores = sigmoid(h @ weight("gate.weight").T)
    if experts is None:
        experts = moe.route(scores + weight("gate.e_score_correction_bias"), config.experts_per_token)
    weights = moe.expert_weights(scores, experts, config)
    z = linear(h, weight("routed_expert_down_proj.weight")) if config.latent else h
    y = np.zeros_like(z)
    for e in np.unique(experts):
        row, slot = np.nonzero(experts == e)
        gate, up = (linear(z[row], weight(f"experts.{e}.{name}.weight")) for name in ("w1", "w3"))
        y[row] += weights[row, slot][:, None] * linear(glu(gate, up, config), weight(f"experts.{e}.w2.weight"))
    y = r(y)
    if config.latent:
        if config.latent_norm:
            y = rms_norm(y, weight("routed_expert_norm.weight"), config.eps)
        y = linear(y, weight("routed_expert_up_proj.weight"))
    if config.shared_experts:
        y = r(y + mlp(h, lambda name: weight(f"shared_experts.{name}"), config))
    return y, experts


def res_mix(banks, stream, norm_weight, proj_weight, eps):
    if not banks:
        return stream
    sources = np.stack([*banks, stream], axis=1)
    score = (sources @ (norm_weight * proj_weight.reshape(-1))) / np.sqrt(np.mean(sources * sources, axis=-1) + eps)
    return r(np.einsum("tn,tnd->td", softmax(score), sources))


def run(folder, tokens, given=None, fp8_index=False, overrides=None):
    """Arguments as of model.run. fp8_index: its own selections come from e4m3 index vectors and bf16 scores."""
    config = configs.load(folder)
    file = Checkpoint(folder, config.prefix)
    file.overrides = overrides or {}
    given = given or Trace()
    trace = Trace()

    def weight(name):
        return file(name).astype(np.float32)

    def under(scope):
        return lambda name: weight(f"{scope}.{name}")

    def mixed(banks, stream, scope):
        if not config.res_block:
            return stream
        return res_mix(banks, stream, weight(f"{scope}_norm.weight"), weight(f"{scope}_proj.weight"), config.eps)

    stream = weight("model.embed_tokens.weight")[tokens]
    banks = []
    for i in range(config.layers):
        scope = f"model.layers.{i}"
        h = mixed(banks, stream, f"{scope}.self_attention_res")
        h = rms_norm(h, weight(f"{scope}.input_layernorm.weight"), config.eps)
        restart = config.res_block and i % config.res_block == 0
        if restart:
            banks.append(stream)
        if config.is_kda(i):
            conv = file.entries[f"{config.prefix}{scope}.self_attn.q_conv1d.weight"][1]
            a = kda_layer(h, under(f"{scope}.self_attn"), config, conv_in_fp32=conv["dtype"] == "F32")
        else:
            a, selected = mla_layer(
                h, under(f"{scope}.self_attn"), config, config.is_dsa(i), given.selected.get(i), fp8_index
            )
            if config.is_dsa(i):
                trace.selected[i] = selected
        stream = a if restart else r(stream + a)

        h = mixed(banks, stream, f"{scope}.mlp_res")
        h = rms_norm(h, weight(f"{scope}.post_attention_layernorm.weight"), config.eps)
        if config.is_moe(i):
            m, trace.experts[i] = moe_layer(h, under(f"{scope}.block_sparse_moe"), config, given.experts.get(i))
        else:
            m = mlp(h, under(f"{scope}.mlp"), config)
        stream = r(stream + m)
        trace.outputs[i] = stream

    h = mixed(banks, stream, "model.output_attn_res")
    trace.logits = linear(rms_norm(h, weight("model.norm.weight"), config.eps), weight("lm_head.weight"))
    return trace
