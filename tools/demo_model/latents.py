"""Latents as the cache stores them, in the three formats of the engine (src/formats/cache_records.h) with scale 1.

A reader gets the values that the stored form stands for; the gradient goes to the unrounded ones as if nothing had been
rounded. Nothing here is compiled: a compiled division may be off by a bit, and the scale of a block is one.
"""
import functools

import numpy as np
import torch

kFormats = ("bf16", "fp8", "nvfp4")
kMixed = (0.2, 0.25, 0.55)  # shares of documents where the formats are mixed
kBlock = 16  # values of the compressed part under one scale of nvfp4


def draw(rng, latents, count):
    """The format of each of `count` documents, as its number in kFormats: the one named, or with "mixed" drawn by the shares of kMixed."""
    return rng.choice(len(kFormats), count, p=kMixed) if latents == "mixed" else np.full(count, kFormats.index(latents))


def e4m3(x):
    """The nearest e4m3 values, ties to even; beyond 448 they saturate."""
    return x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).float()


@functools.lru_cache
def _e2m1(device):
    """(halfway points, magnitudes)"""
    return (torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], device=device),
            torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=device))


def e2m1(x):
    """The nearest e2m1 values, ties to the even code; beyond 6 they saturate."""
    halfway, magnitudes = _e2m1(x.device)
    size = x.abs()
    code = torch.bucketize(size, halfway)  # a tie goes down, which is wrong from an odd code
    tie = size == halfway[code.clamp(max=len(halfway) - 1)]
    return torch.copysign(magnitudes[code + (tie & (code % 2 == 1))], x)


def nvfp4(x):
    blocks = x.unflatten(-1, (-1, kBlock))
    scale = e4m3(blocks.abs().amax(-1, keepdim=True) / 6.0)
    return torch.where(scale > 0, e2m1(blocks / scale) * scale, 0.0).flatten(-2)


class _Stored(torch.autograd.Function):
    @staticmethod
    def forward(ctx, compressed, shared, code):
        fp8, fp4 = ((code == n).unsqueeze(-1) for n in (1, 2))
        c = torch.where(fp4, nvfp4(compressed), torch.where(fp8, e4m3(compressed), compressed))
        return c.bfloat16(), torch.where(fp8 | fp4, e4m3(shared.float()).bfloat16(), shared)

    @staticmethod
    def backward(ctx, compressed, shared):
        return compressed.float(), shared, None


def stored(compressed, shared, code):
    """What readers get, bf16: compressed f32 [T,512], shared bf16 [T,64], code [T] each token's number in kFormats."""
    return _Stored.apply(compressed, shared, code)
