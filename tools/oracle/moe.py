"""Router, routed experts (in a latent space where the model has one), and the shared expert."""

import numpy as np

from .ops import glu, linear, rms_norm, sigmoid


def mlp(x, weight, config):
    gate, up = linear(x, weight("gate_proj.weight")), linear(x, weight("up_proj.weight"))
    return linear(glu(gate, up, config), weight("down_proj.weight"))


def route(choice, k):
    """choice [T, E]. The k best experts of each row, ties to the lower id; [T, k] ascending ids."""
    best = np.argsort(-choice, axis=-1, kind="stable")[:, :k]
    return np.sort(best, axis=-1).astype(np.int32)


def expert_weights(scores, experts, config):
    """scores [T, E] without the bias, experts [T, k]. Returns [T, k]."""
    w = np.take_along_axis(scores, experts.astype(np.int64), axis=-1)
    if config.renormalize:
        w = w / (np.sum(w, axis=-1, keepdims=True) + 1e-20)
    return w * config.scaling


def routed(z, experts, weights, lookup, config):
    """z [T, in], experts and weights [T, k]; lookup: names below `experts`. Returns the weighted sum [T, in]."""
    total = np.zeros_like(z)
    for e in np.unique(experts):
        row, slot = np.nonzero(experts == e)
        x = z[row]
        hidden = glu(linear(x, lookup(f"{e}.w1.weight")), linear(x, lookup(f"{e}.w3.weight")), config)
        total[row] += weights[row, slot][:, None] * linear(hidden, lookup(f"{e}.w2.weight"))
    return total


def layer(h, weight, config, experts=None):
    """h [T, hidden], the normed input; experts [T, k]: to use instead of the router's own choice.

    Returns the output [T, hidden], the choice scores [T, E] and the experts in use [T, k].
    """
    scores = sigmoid(linear(h, weight("gate.weight")))
    choice = scores + weight("gate.e_score_correction_bias")
    if experts is None:
        experts = route(choice, config.experts_per_token)
    z = linear(h, weight("routed_expert_down_proj.weight")) if config.latent else h
    y = routed(z, experts, expert_weights(scores, experts, config), lambda name: weight(f"experts.{name}"), config)
    if config.latent:
        if config.latent_norm:
            y = rms_norm(y, weight("routed_expert_norm.weight"), config.eps)
        y = linear(y, weight("routed_expert_up_proj.weight"))
    if config.shared_experts:
        y = y + mlp(h, lambda name: weight(f"shared_experts.{name}"), config)
    return y, choice, experts
