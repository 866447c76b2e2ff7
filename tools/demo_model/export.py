"""Writes the checkpoint as the published family writes it: names, types, MXFP4 experts, sharded safetensors with an index."""
import json
import struct

import torch

import mxfp4
import parameters

kShardBytes = 15_500_000
_kNames = {torch.bfloat16: "BF16", torch.float32: "F32", torch.uint8: "U8"}


def tensors(text, weights, mxfp4_experts=True):
    """(name, tensor) as stored, the tensors of an expert side by side."""
    for name, (_, dtype, _) in parameters.roster(text).items():
        value = weights[name].detach().cpu()
        if ".experts." not in name:
            yield name, value.to(dtype)
        elif name.endswith("w1") and not mxfp4_experts:
            for expert in range(value.shape[0]):
                for w in ("w1", "w2", "w3"):
                    yield f"{name[:-2]}{expert}.{w}.weight", weights[name[:-2] + w][expert].detach().cpu().to(dtype)
        elif name.endswith("w1"):
            packs = {w: mxfp4.pack(weights[name[:-2] + w].detach().cpu()) for w in ("w1", "w2", "w3")}
            for expert in range(value.shape[0]):
                for w, (packed, scale) in packs.items():
                    yield f"{name[:-2]}{expert}.{w}.weight_packed", packed[expert]
                    yield f"{name[:-2]}{expert}.{w}.weight_scale", scale[expert]


def _bytes(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.dim() else bytes(tensor.numpy())


def write(folder, text, weights, mxfp4_experts=True):
    """Returns the bytes of tensor data."""
    shards, size = [[]], 0
    for name, tensor in tensors(text, weights, mxfp4_experts):
        grow = tensor.numel() * tensor.element_size() + 160
        if size + grow > kShardBytes and not name.endswith("weight_scale"):
            shards.append([])
            size = 0
        shards[-1].append((name, tensor))
        size += grow
    weight_map, total = {}, 0
    for old in folder.glob("model-*.safetensors"):
        old.unlink()
    for number, shard in enumerate(shards, 1):
        file, header, offset = f"model-{number:05d}-of-{len(shards):06d}.safetensors", {}, 0
        for name, tensor in shard:
            n = tensor.numel() * tensor.element_size()
            header[name] = {"dtype": _kNames[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + n]}
            weight_map[name] = file
            offset += n
        total += offset
        head = json.dumps(header, separators=(",", ":")).encode()
        head += b" " * (-len(head) % 8)
        with open(folder / file, "wb") as out:
            out.write(struct.pack("<Q", len(head)) + head)
            for _, tensor in shard:
                out.write(_bytes(tensor))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=1, sort_keys=True) + "\n")
    return total


def read(folder, text):
    """The stored weights again, experts unpacked and stacked; for evaluating what was written."""
    raw, index = {}, json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    types = {v: k for k, v in _kNames.items()}
    for file in sorted(set(index.values())):
        blob = (folder / file).read_bytes()
        (n,) = struct.unpack("<Q", blob[:8])
        for name, entry in json.loads(blob[8:8 + n]).items():
            a, b = entry["data_offsets"]
            raw[name] = torch.frombuffer(bytearray(blob[8 + n + a:8 + n + b]), dtype=types[entry["dtype"]]).view(entry["shape"])
    out = {}
    for name, (shape, dtype, _) in parameters.roster(text).items():
        if ".experts." in name:
            p, w = name[:-2], name[-2:]
            out[name] = torch.stack([mxfp4.unpack(raw[f"{p}{e}.{w}.weight_packed"], raw[f"{p}{e}.{w}.weight_scale"])
                                     for e in range(shape[0])]).to(dtype)
        else:
            out[name] = raw[name]
    return out
