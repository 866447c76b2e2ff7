"""Kimi Delta Attention in its recurrent form: one state update a token, no chunks."""

import numpy as np

from .ops import linear, rms_norm, sigmoid, silu, softplus

L2_EPS = 1e-6  # under the root of the q/k norms


def short_conv(x, taps):
    """Causal depthwise convolution. x [T, D], taps [D, 4]; the last tap multiplies the current token."""
    width = taps.shape[1]
    padded = np.concatenate([np.zeros((width - 1, x.shape[1]), x.dtype), x])
    return sum(padded[j : j + len(x)] * taps[:, j] for j in range(width))


def l2_norm(x):
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + L2_EPS)


def log_decay(u, a_log, lower_bound):
    """u [T, H, K] (dt_bias included), a_log [H]. Returns g [T, H, K] < 0."""
    rate = np.exp(a_log)[:, None]
    if lower_bound is not None:
        return lower_bound * sigmoid(rate * u)
    return -rate * softplus(u)


def recurrence(q, k, v, g, beta, state=None):
    """q, k, g [T, H, K] (q scaled), v [T, H, V], beta [T, H]. Returns o [T, H, V] and the last state [H, K, V]."""
    tokens, heads, width = q.shape
    state = np.zeros((heads, width, v.shape[-1])) if state is None else state.copy()
    out = np.empty_like(v)
    for t in range(tokens):
        state *= np.exp(g[t])[:, :, None]
        predicted = (k[t][:, None, :] @ state)[:, 0]
        state += k[t][:, :, None] * (beta[t][:, None] * (v[t] - predicted))[:, None, :]
        out[t] = (q[t][:, None, :] @ state)[:, 0]
    return out, state


def layer(h, weight, config):
    """h [T, hidden], the normed input; weight: lookup below self_attn. Returns [T, hidden]."""
    by_head = (len(h), config.kda_heads, config.kda_dim)

    def branch(name):
        taps = weight(f"{name}_conv1d.weight")
        x = linear(h, weight(f"{name}_proj.weight"))
        return silu(short_conv(x, taps.reshape(taps.shape[0], -1))).reshape(by_head)

    q = l2_norm(branch("q")) * config.kda_dim**-0.5
    k = l2_norm(branch("k"))
    v = branch("v")
    u = linear(linear(h, weight("f_a_proj.weight")), weight("f_b_proj.weight")) + weight("dt_bias").reshape(-1)
    a_log = weight("A_log").reshape(-1)[: config.kda_heads]  # files may pad it
    g = log_decay(u.reshape(by_head), a_log, config.gate_lower_bound)
    beta = sigmoid(linear(h, weight("b_proj.weight")))
    out, _ = recurrence(q, k, v, g, beta)

    if config.full_rank_gate:
        gate = linear(h, weight("g_proj.weight"))
    else:
        gate = linear(linear(h, weight("g_a_proj.weight")), weight("g_b_proj.weight"))
    out = rms_norm(out, weight("o_norm.weight"), config.eps).reshape(len(h), -1) * sigmoid(gate)
    return linear(out, weight("o_proj.weight"))
