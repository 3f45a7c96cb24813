"""Norms, written out."""

from __future__ import annotations

from typing import Any

from torch_or_skip import torch


def naive_norm(x: Any, scale: Any, bias: Any) -> Any:
    if bias is None:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * scale
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-5) * scale + bias
