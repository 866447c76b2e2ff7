"""Reads and writes safetensors files in numpy, bf16 included: u64 header length, JSON header, raw little-endian data."""

import json
from pathlib import Path

import numpy as np

DTYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "U8": "u1", "BF16": "<u2"}
NAMES = {np.dtype(v): k for k, v in DTYPES.items()}


class Bf16(np.ndarray):
    """Marks a uint16 array as bf16 bit patterns."""


def round_bf16(x):
    """x rounded to the nearest bf16 (ties to even), as float32."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).reshape(np.shape(x))


def to_bf16(x):
    """x as bf16 bit patterns, rounded to nearest."""
    bits = np.ascontiguousarray(round_bf16(x)).view(np.uint32) >> 16
    return bits.astype(np.uint16).reshape(np.shape(x)).view(Bf16)


def from_bf16(bits):
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def read_header(path):
    with open(path, "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(size))
    header.pop("__metadata__", None)
    return header, 8 + size


def read_tensor(path, entry, base):
    begin, end = entry["data_offsets"]
    dtype = np.dtype(DTYPES[entry["dtype"]])
    with open(path, "rb") as f:
        f.seek(base + begin)
        data = np.frombuffer(f.read(end - begin), dtype=dtype).reshape(entry["shape"])
    return from_bf16(data) if entry["dtype"] == "BF16" else data


def load(path):
    """All tensors of one file; bf16 comes back as float32."""
    header, base = read_header(path)
    return {name: read_tensor(path, entry, base) for name, entry in header.items()}


def save(path, tensors, metadata=None):
    header, blobs, at = {}, [], 0
    if metadata:
        header["__metadata__"] = metadata
    for name, x in tensors.items():
        dtype = "BF16" if isinstance(x, Bf16) else NAMES[np.asarray(x).dtype]
        blob = np.ascontiguousarray(x).tobytes()
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))
