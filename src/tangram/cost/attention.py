"""Attention: the parts qkv, core and out.

Element counts per token follow Korthikanti et al. 2022, "Reducing Activation Recomputation in Large
Transformer Models", section 4, generalised to grouped queries; with sequence parallelism everything stored is
divided by tp. Element-wise traffic is what fused kernels move: a norm reads and writes the residual stream,
an addition to it reads two and writes one, queries, keys and values are read and written once (rotation,
layout). That is 10 h + 2 (q + 2 kv) elements per layer and forward pass; backward moves twice as much. A
stack's ``elementwise_ratio`` says how much more its kernels move.

Tensor parallelism all-gathers the input of the column-parallel product and reduce-scatters the output of the
row-parallel one; backward does the converse. The second gather of the input that backward needs (only a shard
was kept) is taken to be hidden under the product that does not need it, as Megatron-Core does.

Latent attention (DeepSeek-V2) as it is trained: nothing absorbed, keys and values expanded for every head.

Context parallelism all-gathers keys and values, exposed: once in forward; in backward again, with a
reduce-scatter of their gradients. Causal work is balanced over the ranks.
"""

from __future__ import annotations

import numpy as np

from tangram.cost import links, work
from tangram.cost.gemm import fill_gemm
from tangram.cost.setting import Setting
from tangram.cost.types import FloatArray
from tangram.model.spec import AttentionSpec, FeedForwardSpec, LatentSpec, LayerSpec, NormKind

QKV_LAUNCH, CORE_LAUNCH, OUT_LAUNCH = 0.25, 0.25, 0.15
"""Shares of a layer's launch time, by number of kernels."""

SCORE_FORWARD_BYTES, SCORE_BACKWARD_BYTES = 11.0, 17.0
"""Traffic of unfused attention per score at 16 bit, twice that at 32 bit.

Forward: scores written; read and written by the softmax; a mask and the dropped-out scores written, and read
by the product with the values. Backward: likewise, for two products on either side.
"""

TENSOR_CORE_ELEMENTS = 8
"""Heads of another width cannot be loaded 16 bytes at a time, which tensor cores want (cuBLAS documentation);
fused kernels pad them.
"""

FLASH_BACKWARD_RATIO = 2.5
"""Backward over forward FLOP of a fused kernel: five products instead of two (Dao 2023, FlashAttention-2)."""

LOG_SUM_BYTES = 4.0
"""What a fused kernel keeps per token and head: the logarithm of the softmax's sum, in fp32."""


def fill_qkv(setting: Setting, layer: LayerSpec, table: FloatArray) -> None:
    """Norm and query/key/value projection: fills the part's table, shape ``(NUM_ROWS, num_configs)``."""
    hidden, element, attention = setting.model.hidden_size, setting.element_bytes, layer.attention
    residual_bytes = setting.shard_tokens * (hidden * element)
    fill_launch(table, QKV_LAUNCH)
    table[work.INPUT] = residual_bytes
    if attention.latent is not None:
        _fill_latent(setting, attention, attention.latent, table)
        return
    columns = _core_columns(setting, attention)
    fill_gemm(table, work.GEMM, setting.tokens, columns, hidden)
    fill_elementwise(table, 2 * residual_bytes)
    fill_tp(setting, table)
    table[work.STORED] = norm_bytes(setting, residual_bytes)
    if attention.qk_norm:
        normed = (attention.query_width + attention.kv_width) / setting.tp
        table[work.STORED] += setting.tokens * (normed * element)
    table[work.TRANSIENT] = setting.tokens * (2 * hidden + columns) * element


def _fill_latent(setting: Setting, attention: AttentionSpec, latent: LatentSpec, table: FloatArray) -> None:
    """Down-projections of a rank's own tokens, held by every rank in full; what they give is gathered over
    tp, normalised, and projected up to the rank's heads.
    """
    hidden, element = setting.model.hidden_size, setting.element_bytes
    queries = attention.query_width / setting.tp
    expanded = attention.num_heads * (latent.nope_dim + latent.value_dim) / setting.tp
    narrow = latent.kv_rank + latent.rope_dim
    if latent.q_rank is None:
        gathered = hidden + narrow
        fill_gemm(table, work.GEMM, setting.tokens, queries, hidden)
    else:
        gathered = latent.q_rank + narrow
        fill_gemm(table, work.GEMM, setting.shard_tokens, float(latent.q_rank), hidden)
        fill_gemm(table, work.GEMM, setting.tokens, queries, float(latent.q_rank))
    fill_gemm(table, work.GEMM, setting.shard_tokens, float(narrow), hidden)
    fill_gemm(table, work.GEMM, setting.tokens, expanded, float(latent.kv_rank))
    residual_bytes = setting.shard_tokens * (hidden * element)
    gathered_bytes = setting.tokens * (gathered * element)
    fill_elementwise(table, 2 * residual_bytes + 2 * gathered_bytes)
    fill_tp(setting, table, gathered)
    table[work.STORED] = norm_bytes(setting, residual_bytes) + 2 * gathered_bytes
    table[work.TRANSIENT] = setting.tokens * (2 * hidden + gathered + queries + expanded) * element


def fill_core(setting: Setting, layer: LayerSpec, table: FloatArray) -> None:
    """Rotary embedding and scores times values: fills the part's table."""
    element, attention = setting.element_bytes, layer.attention
    qkv_bytes = setting.tokens * _core_columns(setting, attention) * element
    fill_elementwise(table, 2 * qkv_bytes)
    fill_launch(table, CORE_LAUNCH)
    kv_bytes = setting.tokens * setting.cp * (attention.expanded_kv_width * element / setting.tp)
    gathered_bytes = setting.groups.remote_frac[links.CP] * kv_bytes
    for times, back in ((1, 0), (2, work.BACKWARD)):
        table[work.CP_CALLS + back] = times
        table[work.CP_BYTES + back] = times * gathered_bytes
    again = attention.latent is not None and "mla_up_proj" in setting.memory.recomputed
    table[work.STORED] = 0.0 if again else qkv_bytes
    table[work.INPUT] = qkv_bytes
    table[work.TRANSIENT] = 2 * (qkv_bytes + kv_bytes)
    if setting.flash:
        _fill_flash(setting, attention, table)
    else:
        _fill_unfused(setting, attention, table)


def fill_out(setting: Setting, layer: LayerSpec, table: FloatArray) -> None:
    """Output projection and residual: fills the part's table."""
    hidden, element = setting.model.hidden_size, setting.element_bytes
    width = layer.attention.value_width / setting.tp
    fill_gemm(table, work.GEMM, setting.tokens, hidden, width)
    fill_elementwise(table, setting.shard_tokens * (3 * hidden * element))
    fill_launch(table, OUT_LAUNCH)
    fill_tp(setting, table)
    input_bytes = setting.tokens * width * element
    table[work.STORED] = input_bytes + setting.shard_tokens * (hidden * dropout_mask_bytes(setting, layer))
    table[work.INPUT] = input_bytes
    table[work.TRANSIENT] = setting.tokens * (2 * hidden + width) * element
    if layer.post_norm:
        add_post_norm(setting, table)


def add_post_norm(setting: Setting, table: FloatArray) -> None:
    """Adds a norm between a block and the residual: it reads, writes, and keeps its input."""
    residual_bytes = setting.shard_tokens * (setting.model.hidden_size * setting.element_bytes)
    table[work.STREAM] += 2 * residual_bytes
    table[work.STREAM + work.BACKWARD] += 4 * residual_bytes
    table[work.STORED] += residual_bytes


def fill_elementwise(table: FloatArray, num_bytes: FloatArray, row: int = work.STREAM) -> None:
    """Fills a pair of element-wise rows: ``num_bytes`` forward, twice as much backward."""
    table[row], table[row + work.BACKWARD] = num_bytes, 2 * num_bytes


def fill_launch(table: FloatArray, share: float, row: int = work.LAUNCH) -> None:
    """Fills a pair of launch rows with a share of a layer's launches per pass."""
    table[row] = table[row + work.BACKWARD] = share


def fill_tp(setting: Setting, table: FloatArray, width: int | None = None) -> None:
    """Fills the tensor-parallel rows: one all-gather or reduce-scatter per pass, of ``width`` elements per
    token (by default of the residual stream).
    """
    elements = setting.model.hidden_size if width is None else width
    total_bytes = setting.tokens * (elements * setting.element_bytes)
    for back in (0, work.BACKWARD):
        table[work.TP_CALLS + back] = 1
        table[work.TP_BYTES + back] = setting.groups.remote_frac[links.TP] * total_bytes


def norm_bytes(setting: Setting, residual_bytes: FloatArray) -> FloatArray:
    """Kept around a norm: its input, and its output unless backward runs it again."""
    return residual_bytes if "layernorm" in setting.memory.recomputed else 2 * residual_bytes


def has_dropout(setting: Setting, layer: LayerSpec) -> bool:
    """Whether a layer has dropouts: as stated, else layers of GPT-2's kind (LayerNorm, no gate) have."""
    if setting.memory.dropout is not None:
        return setting.memory.dropout
    block = layer.feed_forward
    gated = block.gated if isinstance(block, FeedForwardSpec) else block.expert.gated
    return layer.norm is NormKind.LAYERNORM and not gated


def dropout_mask_bytes(setting: Setting, layer: LayerSpec) -> float:
    """Bytes per element of the mask of a dropout of the residual stream."""
    return 1.0 if has_dropout(setting, layer) else 0.0


def _core_columns(setting: Setting, attention: AttentionSpec) -> FloatArray:
    """Queries, keys and values of a token on one rank."""
    columns: FloatArray = (attention.query_width + attention.expanded_kv_width) / setting.tp
    return columns


def _score_flop(setting: Setting, attention: AttentionSpec) -> FloatArray:
    """Forward FLOP of scores and values over the whole square of a rank's queries and all keys."""
    widths = attention.query_width + attention.value_width
    return setting.tokens * (2 * setting.job.seq_len * widths) / setting.tp


def _fill_flash(setting: Setting, attention: AttentionSpec, table: FloatArray) -> None:
    share = attention.num_scores(setting.job.seq_len) / setting.job.seq_len**2
    forward = _score_flop(setting, attention) * (0.5 * share)
    table[work.FLASH] = forward
    table[work.FLASH + work.BACKWARD] = FLASH_BACKWARD_RATIO * forward
    # Across cp ranks, the output in the layout of the exchange is kept beside the next product's input.
    copied = (setting.cp > 1) * (attention.value_width * setting.element_bytes)
    table[work.DROPPABLE] = setting.tokens * (LOG_SUM_BYTES * attention.num_heads + copied) / setting.tp
    if not setting.memory.attention_stated:
        unfused = _score_bytes(setting) * _scores(setting, attention)
        table[work.DOUBTFUL] = np.maximum(unfused - table[work.DROPPABLE], 0.0)


def _fill_unfused(setting: Setting, attention: AttentionSpec, table: FloatArray) -> None:
    """All scores are computed, masked or not."""
    element = setting.element_bytes
    flop = _score_flop(setting, attention)
    row = work.UNALIGNED if attention.head_dim % TENSOR_CORE_ELEMENTS else work.UNFUSED
    table[row], table[row + work.BACKWARD] = flop, 2 * flop
    scores = _scores(setting, attention)
    table[work.SCORES] = scores * (SCORE_FORWARD_BYTES * element / 2)
    table[work.SCORES + work.BACKWARD] = scores * (SCORE_BACKWARD_BYTES * element / 2)
    table[work.DROPPABLE] = _score_bytes(setting) * scores
    table[work.TRANSIENT] += 2 * element * scores


def _scores(setting: Setting, attention: AttentionSpec) -> FloatArray:
    """Scores of the micro-batch on one rank."""
    scores: FloatArray = setting.tokens * (attention.num_heads * setting.job.seq_len) / setting.tp
    return scores


def _score_bytes(setting: Setting) -> float:
    """Kept per score: the softmax's output, and of its dropout mask and output; that there is one is assumed
    where nobody says.
    """
    element = float(setting.element_bytes)
    return element if setting.memory.dropout is False else 2 * element + 1
