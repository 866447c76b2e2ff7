"""MXFP4 as the checkpoint stores it: E2M1 values, one power-of-two scale for 32 values along the input dimension."""
import functools

import torch


@functools.lru_cache
def _values(device):
    return torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=device)


@functools.lru_cache
def _midpoints(device):
    return torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], device=device)


def _scaled(w):
    groups = w.float().unflatten(-1, (-1, 32))
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=2.0 ** -120)
    exponent = torch.floor(torch.log2(largest)) - 2
    return groups * torch.exp2(-exponent), exponent


def fake_quantise(w):
    """The values that the stored form stands for; exact in bf16."""
    scaled, exponent = _scaled(w)
    index = torch.bucketize(scaled.abs(), _midpoints(w.device))
    return (torch.copysign(_values(w.device)[index], scaled) * torch.exp2(exponent)).flatten(-2)


def pack(w):
    """(packed u8 [..., n/2] low nibble first, scale u8 [..., n/32])"""
    scaled, exponent = _scaled(w)
    code = torch.bucketize(scaled.abs(), _midpoints(w.device)).to(torch.uint8) | (scaled < 0).to(torch.uint8) * 8
    code = code.flatten(-2)
    return code[..., 0::2] | code[..., 1::2] << 4, (exponent.squeeze(-1) + 127).to(torch.uint8)


def unpack(packed, scale):
    code = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
    value = _values(packed.device)[(code & 7).long()] * torch.where(code >= 8, -1.0, 1.0)
    return (value.unflatten(-1, (-1, 32)) * torch.exp2(scale.float() - 127).unsqueeze(-1)).flatten(-2)
