"""The dense feed-forward block: the parts up and down.

See :mod:`tangram.cost.attention` for element counts and collectives.
"""

from __future__ import annotations

from tangram.cost import work
from tangram.cost.attention import (
    add_post_norm,
    dropout_mask_bytes,
    fill_elementwise,
    fill_launch,
    fill_tp,
    norm_bytes,
)
from tangram.cost.gemm import fill_gemm
from tangram.cost.setting import Setting
from tangram.cost.types import FloatArray
from tangram.model.spec import FeedForwardSpec, LayerSpec

UP_LAUNCH, DOWN_LAUNCH = 0.2, 0.15
"""Shares of a layer's launch time; the two parts of a block with attention's three make 1."""


def activation_elements(block: FeedForwardSpec) -> float:
    """Traffic of the activation function per up-projected element and forward pass: all are read; one of two
    is written where the block is gated, else all.
    """
    return 1 + 1 / block.num_up_matrices


def fill_up(setting: Setting, layer: LayerSpec, table: FloatArray) -> None:
    """Norm and up (and gate) projection: fills the part's table, shape ``(NUM_ROWS, num_configs)``."""
    hidden, element, block = setting.model.hidden_size, setting.element_bytes, _dense(layer)
    columns = block.num_up_matrices * block.intermediate_size / setting.tp
    fill_gemm(table, work.GEMM, setting.tokens, columns, hidden)
    residual_bytes = setting.shard_tokens * (hidden * element)
    fill_elementwise(table, 2 * residual_bytes)
    fill_launch(table, UP_LAUNCH)
    fill_tp(setting, table)
    # Side by side with attention, the norm's input is kept already.
    table[work.STORED] = norm_bytes(setting, residual_bytes) - layer.parallel * residual_bytes
    table[work.INPUT] = residual_bytes
    table[work.TRANSIENT] = setting.tokens * (2 * hidden + columns) * element


def fill_down(setting: Setting, layer: LayerSpec, table: FloatArray) -> None:
    """Activation, down projection and residual: fills the part's table."""
    hidden, element, block = setting.model.hidden_size, setting.element_bytes, _dense(layer)
    width = block.intermediate_size / setting.tp
    fill_gemm(table, work.GEMM, setting.tokens, hidden, width)
    up_bytes = setting.tokens * width * (block.num_up_matrices * element)
    residual_bytes = setting.shard_tokens * (hidden * element)
    fill_elementwise(table, 3 * residual_bytes + activation_elements(block) * up_bytes)
    fill_launch(table, DOWN_LAUNCH)
    fill_tp(setting, table)
    kept_bytes = up_bytes + setting.tokens * width * element
    stored_bytes = kept_bytes - up_bytes if setting.memory.relu and not block.gated else kept_bytes
    mask_bytes = setting.shard_tokens * (hidden * dropout_mask_bytes(setting, layer))
    table[work.STORED] = mask_bytes + (0.0 if "mlp" in setting.memory.recomputed else stored_bytes)
    table[work.INPUT] = up_bytes
    table[work.TRANSIENT] = kept_bytes + setting.tokens * (2 * hidden * element)
    if layer.post_norm:
        add_post_norm(setting, table)


def _dense(layer: LayerSpec) -> FeedForwardSpec:
    assert isinstance(layer.feed_forward, FeedForwardSpec)
    return layer.feed_forward
