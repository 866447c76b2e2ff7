"""Trace: what a run of the model leaves behind, and its safetensors form, which the engine's trace_model writes too."""

from dataclasses import dataclass, field

import numpy as np

from . import tensor_file


@dataclass
class Trace:
    logits: np.ndarray | None = None  # [rows, vocab]
    outputs: dict = field(default_factory=dict)  # layer -> [rows, hidden], the residual stream after the layer
    selected: dict = field(default_factory=dict)  # DSA layer -> I32 [rows, top_k] ascending positions, -1 padded
    experts: dict = field(default_factory=dict)  # MoE layer -> I32 [rows, k] ascending ids
    index_scores: dict = field(default_factory=dict)  # DSA layer -> [rows, rows]; the oracle's own, not in the file
    choice_scores: dict = field(default_factory=dict)  # MoE layer -> [rows, experts]; likewise


def save(path, trace):
    tensors = {"logits": trace.logits.astype(np.float32)}
    for i, x in trace.outputs.items():
        tensors[f"layers.{i}.output"] = x.astype(np.float32)
    for i, x in trace.selected.items():
        tensors[f"layers.{i}.selected"] = x.astype(np.int32)
    for i, x in trace.experts.items():
        tensors[f"layers.{i}.experts"] = x.astype(np.int32)
    tensor_file.save(path, tensors)


def load(path):
    trace = Trace()
    for name, x in tensor_file.load(path).items():
        if name == "logits":
            trace.logits = x
        else:
            _, layer, kind = name.split(".")
            {"output": trace.outputs, "selected": trace.selected, "experts": trace.experts}[kind][int(layer)] = x
    return trace
