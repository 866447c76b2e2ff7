"""Checkpoint: the tensors of a Hugging Face folder as fp64 arrays; MXFP4 matrices are decoded to exact values."""

import json
from pathlib import Path

import numpy as np

from . import tensor_file

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def decode_mxfp4(packed, scale):
    """packed u8 [out, in/2], low nibble first; scale u8 [out, in/32], value 2^(s-127). Returns fp64 [out, in]."""
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
    factors = np.exp2(scale.astype(np.float64) - 127)
    return E2M1[codes] * np.repeat(factors, 32, axis=1)


class Checkpoint:
    def __init__(self, folder, prefix=""):
        folder = Path(folder)
        index = folder / "model.safetensors.index.json"
        if index.exists():
            files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        else:
            files = ["model.safetensors"]
        self.prefix = prefix
        self.entries = {}
        self.overrides = {}  # name without prefix -> fp64 array, instead of the file's
        for file in files:
            header, base = tensor_file.read_header(folder / file)
            for name, entry in header.items():
                self.entries[name] = (folder / file, entry, base)

    def raw(self, name):
        path, entry, base = self.entries[self.prefix + name]
        return tensor_file.read_tensor(path, entry, base)

    def __call__(self, name):
        if name in self.overrides:
            return self.overrides[name]
        packed = name.removesuffix(".weight") + ".weight_packed"
        if self.prefix + packed in self.entries:
            return decode_mxfp4(self.raw(packed), self.raw(packed.replace("_packed", "_scale")))
        return self.raw(name).astype(np.float64)

    def under(self, scope):
        """A lookup of the names below `scope`."""
        return lambda name: self(f"{scope}.{name}")
