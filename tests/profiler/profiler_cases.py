"""Small models of every kind of layer. A test module that imports this is skipped without PyTorch."""

from __future__ import annotations

from dataclasses import replace

from torch_or_skip import torch

from tangram.job import Precision
from tangram.model.spec import (
    AttentionSpec,
    FeedForwardSpec,
    LatentSpec,
    LayerSpec,
    ModelSpec,
    MoeSpec,
    NormKind,
    PositionKind,
)
from tangram.profiler.device import Device
from tangram.profiler.shard import Shard

LLAMA = LayerSpec(AttentionSpec(8, 2, 6), FeedForwardSpec(64, gated=True), NormKind.RMSNORM)
QWEN = LayerSpec(
    AttentionSpec(4, 4, 10, qkv_bias=True, qk_norm=True), FeedForwardSpec(32, gated=True), NormKind.RMSNORM
)
GPT = LayerSpec(
    AttentionSpec(4, 4, 8, qkv_bias=True, out_bias=True),
    FeedForwardSpec(128, False, True),
    NormKind.LAYERNORM,
)
MIXTRAL = LayerSpec(AttentionSpec(8, 4, 4), MoeSpec(4, 2, FeedForwardSpec(48, gated=True)), NormKind.RMSNORM)
GSHARD = LayerSpec(
    AttentionSpec(4, 4, 8, True, True), MoeSpec(6, 2, FeedForwardSpec(16, False, True)), NormKind.LAYERNORM
)
DEEPSEEK = LayerSpec(
    AttentionSpec(4, 4, 14, latent=LatentSpec(q_rank=12, kv_rank=10, nope_dim=8, rope_dim=6, value_dim=10)),
    MoeSpec(4, 2, FeedForwardSpec(16, gated=True), FeedForwardSpec(24, gated=True)),
    NormKind.RMSNORM,
)
MOONLIGHT = LayerSpec(
    AttentionSpec(2, 2, 12, False, True, latent=LatentSpec(None, 16, 8, 4, 8)),
    MoeSpec(4, 1, FeedForwardSpec(16, False, True), FeedForwardSpec(24, False, True)),
    NormKind.LAYERNORM,
)
GEMMA = LayerSpec(
    AttentionSpec(4, 2, 6, qk_norm=True, window=4),
    FeedForwardSpec(48, gated=True),
    NormKind.RMSNORM,
    post_norm=True,
)
NEOX = LayerSpec(
    AttentionSpec(4, 4, 8, True, True), FeedForwardSpec(128, False, True), NormKind.LAYERNORM, parallel=True
)
KINDS = {
    "gemma": GEMMA,
    "neox": NEOX,
    "llama": LLAMA,
    "qwen": QWEN,
    "gpt": GPT,
    "mixtral": MIXTRAL,
    "gshard": GSHARD,
    "deepseek": DEEPSEEK,
    "moonlight": MOONLIGHT,
}

CPU = Device(torch.device("cpu"), "CPU", "a CPU")


def model_of(*layers: LayerSpec, learned: bool = False, tied: bool = False, hidden: int = 32) -> ModelSpec:
    return ModelSpec(
        name="small",
        family="llama",
        hidden_size=hidden,
        vocab_size=300,
        layers=layers,
        norm=layers[0].norm,
        position=PositionKind.LEARNED if learned else PositionKind.ROTARY,
        max_positions=64,
        tied_embeddings=tied,
    )


def shard_of(
    model: ModelSpec, tp: int = 1, micro_batch: int = 2, seq_len: int = 16, precision: str = "fp32"
) -> Shard:
    return Shard(model, tp, micro_batch, seq_len, Precision(precision), torch.device("cpu"))


def untied(model: ModelSpec) -> ModelSpec:
    """The same model with a matrix of its own in the head."""
    return replace(model, tied_embeddings=False)
