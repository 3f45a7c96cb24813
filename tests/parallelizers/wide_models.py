"""Small models whose layers are large."""

from __future__ import annotations

from dataclasses import replace

from tangram.model.spec import ModelSpec


def wide(model: ModelSpec, *, tied: bool = False) -> ModelSpec:
    """Layers large enough that strategies differ by many megabytes."""
    layers = []
    for layer in model.layers:
        attention = replace(layer.attention, num_heads=16, num_kv_heads=8, head_dim=64)
        if layer.moe is None:
            block = replace(layer.feed_forward, intermediate_size=2816)  # type: ignore[type-var]
        else:
            block = replace(layer.moe, expert=replace(layer.moe.expert, intermediate_size=512))  # type: ignore[assignment]
        layers.append(replace(layer, attention=attention, feed_forward=block))
    return replace(model, hidden_size=1024, layers=tuple(layers), tied_embeddings=tied)
