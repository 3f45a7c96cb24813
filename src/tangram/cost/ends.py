"""The ends of the model: embedding, and final norm with LM head and loss.

Both matrices are split over tp by vocabulary rows. Where they are narrower than the residual stream, the
projections between are held by every rank in full and work on its own tokens.

The head multiplies in the job's precision (never below 16 bit), which matters for large vocabularies. Its
logits exist for one micro-batch at a time, on the last stage, so they are workspace and not stored
activations.
"""

from __future__ import annotations

from tangram.cost import links, work
from tangram.cost.attention import fill_elementwise, fill_launch, fill_tp
from tangram.cost.gemm import fill_gemm
from tangram.cost.setting import Setting
from tangram.cost.types import FloatArray

EMBEDDING_LAUNCH, HEAD_LAUNCH = 0.1, 0.3
"""In units of a layer's launch time."""

TOKEN_BYTES = 8.0
"""A token number is a 64-bit integer."""

LOSS_REDUCTIONS = 3
"""Small all-reduces of a vocabulary-parallel loss: maximum, sum, and the target's logit."""


def fill_embedding(setting: Setting, table: FloatArray) -> None:
    """Row lookup (position table, projection, norm): fills the part's table, shape ``(NUM_ROWS,
    num_configs)``.
    """
    model, element = setting.model, setting.element_bytes
    width = model.embedding_width
    token_bytes = setting.tokens * (width * element)
    residual_bytes = setting.shard_tokens * (model.hidden_size * element)
    fill_elementwise(table, 2 * token_bytes + (2 * residual_bytes if model.embedding_norm else 0.0))
    fill_launch(table, EMBEDDING_LAUNCH)
    fill_tp(setting, table, width)
    table[work.STORED] = table[work.INPUT] = setting.tokens * TOKEN_BYTES
    # The gradient of the table is dense before it is added to the accumulated one.
    table[work.TRANSIENT] = token_bytes + setting.vocab_rows * (width * element)
    if model.embedding_size is not None:
        fill_gemm(table, work.GEMM, setting.shard_tokens, float(model.hidden_size), width)
        table[work.STORED] += setting.shard_tokens * (width * element)
    if model.embedding_norm:
        table[work.STORED] += residual_bytes


def fill_head(setting: Setting, table: FloatArray) -> None:
    """Final norm, LM head and loss: fills the part's table."""
    model, element = setting.model, setting.element_bytes
    hidden, width = model.hidden_size, model.embedding_width
    fill_gemm(table, work.HEAD, setting.tokens, setting.vocab_rows, width)
    residual_bytes = setting.shard_tokens * (hidden * element)
    if model.final_norm:
        fill_elementwise(table, 2 * residual_bytes)
    fill_launch(table, HEAD_LAUNCH)
    fill_tp(setting, table, width)
    table[work.TP_CALLS] += 2 * LOSS_REDUCTIONS
    table[work.LOGITS] = setting.tokens * setting.vocab_rows
    table[work.HEAD_WEIGHTS] = setting.vocab_rows * width
    table[work.STORED] = (2 if model.final_norm else 1) * residual_bytes
    table[work.INPUT] = residual_bytes
    # The input, gathered over tp, and its gradient before it is scattered.
    table[work.TRANSIENT] = setting.tokens * (2 * width * element)
    if model.embedding_size is not None:
        fill_gemm(table, work.GEMM, setting.shard_tokens, float(width), hidden)
        table[work.STORED] += setting.shard_tokens * (width * element)
    for _ in range(model.num_prediction_layers):
        _add_prediction(setting, table)


def _add_prediction(setting: Setting, table: FloatArray) -> None:
    """Adds what a layer for prediction has besides the layer.

    The embedding of a later token, looked up from a copy of its matrix; norms of that and of the layer
    before; a projection of both, held by every rank in full; and a final norm, a pass through the head, and a
    loss. Logits are worked on one loss after the other.
    """
    model, element = setting.model, setting.element_bytes
    hidden, width = model.hidden_size, model.embedding_width
    residual_bytes = setting.shard_tokens * (hidden * element)
    fill_gemm(table, work.GEMM, setting.shard_tokens, float(hidden), 2 * hidden)
    fill_gemm(table, work.HEAD, setting.tokens, setting.vocab_rows, width)
    # The lookup writes the embedding; three norms read and write, and keep their inputs and outputs.
    moved_bytes = 2 * setting.tokens * (width * element) + 6 * residual_bytes
    gathered_bytes = 2 * setting.tokens * (width * element) * setting.groups.remote_frac[links.TP]
    for back in (0, work.BACKWARD):
        table[work.STREAM + back] += moved_bytes * (2 if back else 1)
        table[work.LAUNCH + back] += EMBEDDING_LAUNCH + HEAD_LAUNCH
        table[work.TP_CALLS + back] += 2  # embedding and head
        table[work.TP_BYTES + back] += gathered_bytes
    table[work.TP_CALLS] += 2 * LOSS_REDUCTIONS
    table[work.STORED] += 6 * residual_bytes + setting.tokens * TOKEN_BYTES
