"""Multi-head latent attention, unabsorbed: keys and values are expanded from the latent for every head. No rotation."""

import numpy as np

from . import dsa
from .ops import linear, rms_norm, sigmoid, softmax


def attend(q, k, v, mask, scale):
    """q, k [T, H, D], v [T, H, V], mask [T, T] of the keys each row sees. Returns [T, H, V]."""
    out = np.empty((len(q), *v.shape[1:]))
    for h in range(q.shape[1]):
        logits = np.where(mask, q[:, h] @ k[:, h].T * scale, -np.inf)
        out[:, h] = softmax(logits) @ v[:, h]
    return out


def layer(h, weight, config, is_dsa=False, selected=None):
    """h [T, hidden], the normed input; selected [T, top_k]: keys to use instead of the indexer's own choice.

    Returns the output [T, hidden], the index scores [T, T] and the keys in use [T, top_k] (None without DSA).
    """
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

    index_scores = None
    mask = np.tri(tokens, dtype=bool)
    if is_dsa:
        index_scores = dsa.index(h, cq, lambda name: weight(f"indexer.{name}"), config)
        if selected is None:
            selected = dsa.select(index_scores, config.top_k)
        mask &= dsa.allowed(selected, tokens)

    out = attend(q, k, v, mask, (config.nope + config.rope) ** -0.5).reshape(tokens, -1)
    if config.output_gate:
        out = out * sigmoid(linear(h, weight("g_proj.weight")))
    return linear(out, weight("o_proj.weight")), index_scores, selected
