"""Mixtures of experts: the part moe (norm, router, dispatch, experts, combine, residual).

With sequence parallelism every rank starts from its own ``shard_tokens``. Each token is sent to ``top_k``
experts by an all-to-all over the ep group and comes back by another; backward sends the gradients the same
two ways. Ranks of an expert-tp group gather the tokens that they work on together, and reduce-scatter the
outputs. Nothing of this is taken to overlap with compute.

A product has the tokens of one expert as its rows, so many small experts cost more than their FLOP. The
busiest rank of an ep group gets ``expert_imbalance`` times the mean, and everybody waits for it
(:mod:`tangram.cost.rates`; the tables count the mean); no tokens are dropped. Router and norm are replicated
over tp.
"""

from __future__ import annotations

import numpy as np

from tangram.cost import links, work
from tangram.cost.attention import (
    add_post_norm,
    dropout_mask_bytes,
    fill_elementwise,
    fill_launch,
    norm_bytes,
)
from tangram.cost.feed_forward import DOWN_LAUNCH, UP_LAUNCH, activation_elements
from tangram.cost.gemm import fill_expert_gemm, fill_gemm
from tangram.cost.setting import Setting
from tangram.cost.types import FloatArray
from tangram.model.spec import FeedForwardSpec, LayerSpec, MoeSpec

PERMUTE_ELEMENTS = 4
"""Traffic of permuting tokens by expert and back, per routed element and pass: read and written twice."""

ROUTER_BYTES = 4.0
"""Router probabilities are kept in fp32."""


def fill_moe(setting: Setting, layer: LayerSpec, table: FloatArray) -> None:
    """Fills the part's table, shape ``(NUM_ROWS, num_configs)``."""
    moe = layer.moe
    assert moe is not None
    hidden, element = setting.model.hidden_size, setting.element_bytes
    routed = setting.shard_tokens * float(moe.top_k)
    worked = routed * setting.expert_tp
    routed_bytes = routed * (hidden * element)
    worked_bytes = worked * (hidden * element)
    act_bytes = worked * (moe.expert.intermediate_size * element) / setting.expert_tp
    up_bytes = moe.expert.num_up_matrices * act_bytes
    residual_bytes = setting.shard_tokens * (hidden * element)
    _fill_products(setting, moe, worked, table)
    fill_elementwise(table, 5 * residual_bytes)
    moved = PERMUTE_ELEMENTS * routed_bytes + activation_elements(moe.expert) * up_bytes
    fill_elementwise(table, moved, work.EXPERT_STREAM)
    fill_launch(table, UP_LAUNCH + DOWN_LAUNCH, work.MOE_LAUNCH)
    gathered_bytes = setting.groups.remote_frac[links.EXPERT_TP] * worked_bytes
    for back in (0, work.BACKWARD):
        table[work.EP_CALLS + back] = table[work.EXPERT_TP_CALLS + back] = 2
        table[work.EP_BYTES + back] = 2 * routed_bytes
        table[work.EXPERT_TP_BYTES + back] = 2 * gathered_bytes
    _fill_kept(setting, layer, moe, (worked_bytes, routed_bytes, up_bytes, act_bytes), table)
    if moe.shared is not None:
        _fill_shared(setting, moe.shared, table)
    if layer.post_norm:
        add_post_norm(setting, table)
    table[work.EXPERT_TRANSIENT] = 2 * (worked_bytes + routed_bytes) + up_bytes + act_bytes


def _fill_kept(
    setting: Setting,
    layer: LayerSpec,
    moe: MoeSpec,
    num_bytes: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
    table: FloatArray,
) -> None:
    """Norm input and output, router; expert inputs, up outputs and activations; and what is weighted by the
    router's probabilities: outputs, or activations, which are then kept twice unless a kernel of a gated one
    does both.
    """
    hidden, again = setting.model.hidden_size, setting.memory.recomputed
    worked_bytes, routed_bytes, up_bytes, act_bytes = num_bytes
    residual_bytes = setting.shard_tokens * (hidden * setting.element_bytes)
    mask_bytes = setting.shard_tokens * (hidden * dropout_mask_bytes(setting, layer))
    router_bytes = setting.shard_tokens * (ROUTER_BYTES * moe.num_experts)
    outside = setting.memory.weighs_outputs
    copies = 0 if "moe_act" in again else 1 if moe.expert.gated or outside else 2
    table[work.INPUT] = residual_bytes
    table[work.STORED] = mask_bytes + (0 if layer.parallel else 1) * residual_bytes
    if "moe" not in again:
        table[work.STORED] += norm_bytes(setting, residual_bytes) - residual_bytes + router_bytes
        table[work.EXPERT_STORED] = worked_bytes + up_bytes + copies * act_bytes + outside * routed_bytes


def _fill_shared(setting: Setting, shared: FeedForwardSpec, table: FloatArray) -> None:
    """Adds the shared experts: a dense block, split over tp like one, between a gather and a
    reduce-scatter.
    """
    hidden, element = setting.model.hidden_size, setting.element_bytes
    width = shared.intermediate_size / setting.tp
    fill_gemm(table, work.GEMM, setting.tokens, shared.num_up_matrices * width, hidden)
    fill_gemm(table, work.GEMM, setting.tokens, hidden, width)
    act_bytes = setting.tokens * width * element
    up_bytes = shared.num_up_matrices * act_bytes
    gathered_bytes = setting.tokens * (hidden * element) * setting.groups.remote_frac[links.TP]
    for back in (0, work.BACKWARD):
        table[work.STREAM + back] += activation_elements(shared) * up_bytes * (2 if back else 1)
        table[work.LAUNCH + back] += UP_LAUNCH + DOWN_LAUNCH
        table[work.TP_CALLS + back] += 2
        table[work.TP_BYTES + back] += 2 * gathered_bytes
    if not {"moe", "shared_experts"} & set(setting.memory.recomputed):
        table[work.STORED] += up_bytes + act_bytes


def _fill_products(setting: Setting, moe: MoeSpec, worked: FloatArray, table: FloatArray) -> None:
    """Router, and grouped products: one per expert that has tokens."""
    hidden, expert = setting.model.hidden_size, moe.expert
    busy_experts = np.minimum(moe.num_experts / setting.ep, worked)
    rows = worked / busy_experts
    width = expert.intermediate_size / setting.expert_tp
    fill_expert_gemm(table, busy_experts, rows, expert.num_up_matrices * width, hidden)
    fill_expert_gemm(table, busy_experts, rows, hidden, width)
    fill_gemm(table, work.GEMM, setting.shard_tokens, moe.num_experts, hidden)
