"""The ends of the model: embedding, and final norm with LM head and loss.

Both matrices are split over tp by vocabulary rows.

The head multiplies in the job's precision (never below 16 bit), which matters for large vocabularies. Its
logits exist for one micro-batch at a time, on the last stage, so they are workspace and not stored
activations.
"""

from __future__ import annotations

from tangram.cost import links, work
from tangram.cost.attention import fill_elementwise, fill_launch, fill_tp
from tangram.cost.gemm import gemm_s
from tangram.cost.setting import Setting
from tangram.cost.types import FloatArray

EMBEDDING_LAUNCH, HEAD_LAUNCH = 0.1, 0.3
"""In units of a layer's launch time."""

TOKEN_BYTES = 8.0
"""A token number is a 64-bit integer."""

LOSS_REDUCTIONS = 3
"""Small all-reduces of a vocabulary-parallel loss: maximum, sum, and the target's logit."""


def fill_embedding(setting: Setting, table: FloatArray) -> None:
    """Row lookup (and position table): fills the part's table, shape ``(NUM_ROWS, num_configs)``."""
    hidden, element = setting.model.hidden_size, setting.element_bytes
    token_bytes = setting.tokens * (hidden * element)
    fill_elementwise(setting, table, 2 * token_bytes)
    fill_launch(setting, table, EMBEDDING_LAUNCH)
    fill_tp(setting, table)
    table[work.STORED] = table[work.INPUT] = setting.tokens * TOKEN_BYTES
    # The gradient of the table is dense before it is added to the accumulated one.
    table[work.TRANSIENT] = token_bytes + setting.vocab_rows * (hidden * element)


def fill_head(setting: Setting, table: FloatArray) -> None:
    """Final norm, LM head and loss: fills the part's table."""
    hidden, element, stack = setting.model.hidden_size, setting.element_bytes, setting.stack
    table[work.MATMUL], table[work.MATMUL + work.BACKWARD] = gemm_s(
        setting, setting.tokens, setting.vocab_rows, hidden
    )
    residual_bytes = setting.shard_tokens * (hidden * element)
    fill_elementwise(setting, table, 5 * residual_bytes)
    logits = setting.tokens * setting.vocab_rows
    traffic_bytes = stack.logit_traffic_fixed_bytes + stack.logit_traffic_element_ratio * element
    loss_s = logits * (0.5 * traffic_bytes * setting.stream_s_per_byte)
    table[work.ELEMENTWISE] += loss_s
    table[work.ELEMENTWISE + work.BACKWARD] += loss_s
    fill_launch(setting, table, HEAD_LAUNCH)
    fill_tp(setting, table)
    table[work.TP] += 2 * LOSS_REDUCTIONS * setting.links.latency_s[links.TP]
    table[work.STORED] = 2 * residual_bytes
    table[work.INPUT] = residual_bytes
    logit_bytes = stack.logit_fixed_bytes + stack.logit_element_ratio * element
    table[work.TRANSIENT] = logits * logit_bytes + setting.vocab_rows * (hidden * stack.head_gradient_bytes)
