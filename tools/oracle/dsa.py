"""The lightning indexer of DSA: a cheap score of every earlier key, and the top-k keys by it. No rotation, no Hadamard."""

import numpy as np

from .ops import layer_norm, linear


def scores(q, k, head_weight):
    """q [T, H, D], k [T, D], head_weight [T, H]. Returns I [T, T], -inf for keys after the row."""
    tokens, heads, width = q.shape
    total = np.zeros((tokens, tokens))
    for h in range(heads):
        total += head_weight[:, h, None] * heads**-0.5 * np.maximum(q[:, h] @ k.T * width**-0.5, 0)
    return np.where(np.tri(tokens, dtype=bool), total, -np.inf)


def index(h, cq, weight, config):
    """h [T, hidden] normed input, cq [T, q_lora]; weight: lookup below self_attn.indexer. Returns I [T, T]."""
    q = linear(cq, weight("wq_b.weight")).reshape(len(h), config.index_heads, config.index_dim)
    k = layer_norm(linear(h, weight("wk.weight")), weight("k_norm.weight"), weight("k_norm.bias"), config.eps)
    return scores(q, k, linear(h, weight("weights_proj.weight")))


def select(index_scores, top_k):
    """The min(top_k, t+1) best keys of each row t, ties to the earlier; [T, top_k] ascending, padded with -1."""
    tokens = len(index_scores)
    selected = np.full((tokens, top_k), -1, dtype=np.int32)
    for t in range(tokens):
        best = np.argsort(-index_scores[t, : t + 1], kind="stable")[:top_k]
        selected[t, : len(best)] = np.sort(best)
    return selected


def allowed(selected, tokens):
    """selected [T, top_k] as a mask [T, keys]."""
    mask = np.zeros((len(selected), tokens + 1), dtype=bool)
    np.put_along_axis(mask, np.where(selected < 0, tokens, selected), True, axis=1)
    return mask[:, :tokens]
