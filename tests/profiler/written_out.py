"""Norms and rotary positions, written out."""

from __future__ import annotations

import math
from typing import Any

from torch_or_skip import torch


def naive_norm(x: Any, scale: Any, bias: Any) -> Any:
    if bias is None:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * scale
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-5) * scale + bias


def naive_rotary(x: Any) -> Any:
    """``(seq_len, head_dim)``: pairs (i, i + half) as complex numbers, turned by position x 10000^(-2i/d)."""
    seq_len, width = x.shape
    half = width // 2
    turned = torch.complex(x[:, :half], x[:, half:])
    for pos in range(seq_len):
        for i in range(half):
            angle = pos * 10000 ** (-2 * i / width)
            turned[pos, i] *= complex(math.cos(angle), math.sin(angle))
    return torch.cat((turned.real, turned.imag), dim=-1)
