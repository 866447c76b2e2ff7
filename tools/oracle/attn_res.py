"""Attention residuals in block form: a softmax over the banked streams and the current one."""

import numpy as np

from .ops import softmax


def mix(banks, stream, norm_weight, proj_weight, eps):
    """banks: list of [T, hidden]; stream [T, hidden]. Scores read normalised values, the sum raw ones."""
    if not banks:
        return stream
    sources = np.stack([*banks, stream], axis=1)  # [T, n+1, hidden]
    rms = np.sqrt(np.mean(sources * sources, axis=-1) + eps)
    p = softmax(sources @ (norm_weight * proj_weight.reshape(-1)) / rms)
    return np.einsum("tn,tnd->td", p, sources)
