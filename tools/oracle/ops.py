"""The elementary formulas, in the precision of their arguments."""

import numpy as np


def linear(x, w):
    """x [..., in], w [out, in]."""
    return x @ w.T


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def layer_norm(x, weight, bias, eps):
    centred = x - np.mean(x, axis=-1, keepdims=True)
    return centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + eps) * weight + bias


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def softmax(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def situ_glu(gate, up, beta, linear_beta):
    bounded_up = linear_beta * np.tanh(up / linear_beta) if linear_beta > 0 else up
    return beta * np.tanh(gate / beta) * sigmoid(gate) * bounded_up


def glu(gate, up, config):
    if config.situ:
        return situ_glu(gate, up, config.situ_beta, config.situ_linear_beta)
    return silu(gate) * up
