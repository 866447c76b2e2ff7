"""Writes tests/data/stages/*.safetensors: small inputs of single stages, exact in bf16, and the oracle's fp64 outputs.

python tests/oracle/make_stage_vectors.py [OUT_DIR]. Shapes stand beside each tensor below.
"""

import dataclasses
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from oracle import attn_res, config as configs, dsa, kda, moe, ops, seeded, tensor_file  # noqa: E402
from oracle.checkpoint import decode_mxfp4  # noqa: E402
from oracle.tensor_file import from_bf16, to_bf16  # noqa: E402

SEED = 11
EVERY = 8  # KDA's value columns are independent; one in eight is stored


class Inputs(dict):
    """Tensors to store; `normal` adds one and returns its fp64 values."""

    def normal(self, name, shape, scale=1.0, shift=0.0):
        self[name] = to_bf16(shift + scale * seeded.Random(SEED, name).normal(shape))
        return from_bf16(self[name]).astype(np.float64)


def kda_vectors():
    """One head over three chunks. log_decay_* is what a decay kind gives for u; the recurrence reads it rounded."""
    x = Inputs()
    tokens = 48
    q = x.normal("q", (tokens, 1, 128), 0.008)  # [T, 1, 128] normed and scaled, as the stage gets it
    k = x.normal("k", (tokens, 1, 128), 0.088)  # [T, 1, 128]
    v = x.normal("v", (tokens, 1, 128))  # [T, 1, 128]
    beta = 1 / (1 + np.exp(-x.normal("beta_logit", (tokens, 1))))  # [T, 1]
    x["beta"] = to_bf16(beta)
    beta = from_bf16(x["beta"]).astype(np.float64)
    u = x.normal("u", (4, 1, 128), 3.0)  # [4, 1, 128]
    x["a_log"] = np.float32([0.5])
    for kind, bound, step in (("bounded", -5.0, -2.0), ("unbounded", None, 1.5)):
        x[f"log_decay_{kind}"] = kda.log_decay(u, x["a_log"].astype(np.float64), bound)  # F64 [4, 1, 128]
        spread = seeded.Random(SEED, kind).normal((tokens, 1, 128)) * 3 + step
        x[f"g_{kind}"] = to_bf16(kda.log_decay(spread, np.float64([0.5]), bound))  # [T, 1, 128]
        g = from_bf16(x[f"g_{kind}"]).astype(np.float64)
        out, state = kda.recurrence(q, k, v, g, beta)
        x[f"out_{kind}"] = np.ascontiguousarray(out[:, :, ::EVERY])  # F64 [T, 1, 16]: columns 0, 8, …
        x[f"state_{kind}"] = np.ascontiguousarray(state[:, ::EVERY, ::EVERY])  # F64 [1, 16, 16] after the last token
    return x


def attn_res_vectors():
    x = Inputs()
    banks = [x.normal(f"bank{i}", (4, 64), 1.0 + i) for i in range(3)]  # [4, 64] each
    stream = x.normal("stream", (4, 64), 2.0)  # [4, 64]
    norm, proj = x.normal("norm", 64, 0.1, 1.0), x.normal("proj", 64, 0.3)  # [64]
    final = x.normal("final_norm", 64, 0.1, 1.0)  # [64]
    mix = attn_res.mix(banks, stream, norm, proj, 1e-5)
    return x | {"mix": mix, "out": ops.rms_norm(mix, final, 1e-5)}  # F64 [4, 64]


def situ_vectors():
    x = Inputs()
    gate, up = x.normal("gate", 96, 5.0), x.normal("up", 96, 20.0)  # [96]
    return x | {"situ": ops.situ_glu(gate, up, 4.0, 25.0), "swiglu": ops.silu(gate) * up}  # F64 [96]


def moe_vectors():
    """Router and MXFP4 experts, without a shared expert: 6 rows, 4 experts, 2 a row, latent 32, intermediate 32."""
    x = Inputs()
    config = configs.load(ROOT / "tests/data/configs/k31-small.json")
    config = dataclasses.replace(config, hidden=64, experts=4, experts_per_token=2, expert_width=32, latent=32)
    h = x.normal("h", (6, 64))  # [6, 64]
    router, down = x.normal("router", (4, 64), 0.125), x.normal("latent_down", (32, 64), 0.125)  # [4, 64], [32, 64]
    x["router_bias"] = np.float32([0.05, -0.02, 0.0, 0.03])
    scores = ops.sigmoid(h @ router.T)
    experts = moe.route(scores + x["router_bias"], 2)
    weights = moe.expert_weights(scores, experts, config)
    matrices = {}
    for e in range(4):
        for name in ("w1", "w3", "w2"):
            random = seeded.Random(SEED, f"{e}.{name}")
            packed = random.integers(256, (32, 16)).astype(np.uint8)
            scale = (123 + random.integers(4, (32, 1))).astype(np.uint8)
            x[f"experts.{e}.{name}.weight_packed"], x[f"experts.{e}.{name}.weight_scale"] = packed, scale
            matrices[f"{e}.{name}.weight"] = decode_mxfp4(packed, scale)
    z = from_bf16(to_bf16(h @ down.T)).astype(np.float64)  # the stage rounds it
    routed = moe.routed(z, experts, weights, matrices.__getitem__, config)
    return x | {"experts": experts, "expert_weights": weights, "routed": routed}  # I32 [6, 2], F64 [6, 2], F64 [6, 32]


def index_vectors():
    x = Inputs()
    q, k = x.normal("q", (8, 2, 128)), x.normal("k", (8, 128))  # [8, 2, 128], [8, 128]
    weight = x.normal("head_weight", (8, 2))  # [8, 2], not folded
    scores = dsa.scores(q, k, weight)
    return x | {"scores": scores, "selected": dsa.select(scores, 4)}  # F64 [8, 8], -inf after the row; I32 [8, 4]


def attend_vectors():
    """The absorbed walk over latents, of one row with two heads; 576 = 512 (also the value) + 64."""
    x = Inputs()
    q, latent = x.normal("query", (2, 576), 1.5), x.normal("latent", (6, 576))  # [2, 576], [6, 576]
    for name, keys in (("dense", np.arange(6)), ("sparse", np.array([0, 2, 5]))):
        p = ops.softmax(q @ latent[keys].T * 192**-0.5)
        x[f"out_{name}"] = p @ latent[keys, :512]  # F64 [2, 512]
    x["selected"] = np.int32([0, 2, 5, -1])
    return x


MAKERS = {
    "kda": kda_vectors,
    "attn_res": attn_res_vectors,
    "situ": situ_vectors,
    "moe": moe_vectors,
    "index": index_vectors,
    "attend": attend_vectors,
}


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests/data/stages"
    out.mkdir(parents=True, exist_ok=True)
    for name, make in MAKERS.items():
        tensor_file.save(out / f"{name}.safetensors", make())


if __name__ == "__main__":
    main()
