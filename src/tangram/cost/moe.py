"""Mixtures of experts: the part moe (norm, router, dispatch, experts, combine, residual).

With sequence parallelism every rank starts from its own ``shard_tokens``. Each token is sent to ``top_k``
experts by an all-to-all over the ep group and comes back by another; backward sends the gradients the same
two ways. Ranks of an expert-tp group gather the tokens that they work on together, and reduce-scatter the
outputs. Nothing of this is taken to overlap with compute.

A product has the tokens of one expert as its rows, so many small experts cost more than their FLOP. The
busiest rank of an ep group gets ``expert_imbalance`` times the mean, and everybody waits for it; no tokens
are dropped. Router and norm are replicated over tp.
"""

from __future__ import annotations

import numpy as np

from tangram.cost import links, work
from tangram.cost.attention import dropout_mask_bytes, fill_elementwise, fill_launch
from tangram.cost.feed_forward import ACTIVATION_ELEMENTS, DOWN_LAUNCH, UP_LAUNCH
from tangram.cost.gemm import gemm_s
from tangram.cost.setting import Setting
from tangram.cost.types import FloatArray
from tangram.model.spec import LayerSpec, MoeSpec

PERMUTE_ELEMENTS = 4
"""Traffic of permuting tokens by expert and back, per routed element and pass: read and written twice."""

ROUTER_BYTES = 4.0
"""Router probabilities are kept in fp32."""


def fill_moe(setting: Setting, layer: LayerSpec, table: FloatArray) -> None:
    """Fills the part's table, shape ``(NUM_ROWS, num_configs)``."""
    moe = layer.moe
    assert moe is not None
    hidden, element = setting.model.hidden_size, setting.element_bytes
    imbalance = np.where(setting.ep > 1, setting.stack.expert_imbalance, 1.0)
    routed = setting.shard_tokens * moe.top_k * imbalance
    worked = routed * setting.expert_tp
    routed_bytes = routed * (hidden * element)
    worked_bytes = worked * (hidden * element)
    act_bytes = worked * (moe.expert.intermediate_size * element) / setting.expert_tp
    up_bytes = moe.expert.num_up_matrices * act_bytes
    residual_bytes = setting.shard_tokens * (hidden * element)
    _fill_products(setting, moe, worked, table)
    moved = 10 * residual_bytes + PERMUTE_ELEMENTS * routed_bytes + ACTIVATION_ELEMENTS * up_bytes
    fill_elementwise(setting, table, moved)
    fill_launch(setting, table, setting.stack.moe_launch_ratio * (UP_LAUNCH + DOWN_LAUNCH))
    exchange_s = 2 * setting.links.all_to_all_s(links.EP, routed_bytes)
    exchange_s += 2 * setting.links.gather_s(links.EXPERT_TP, worked_bytes)
    table[work.EP] = table[work.EP + work.BACKWARD] = exchange_s
    kept_bytes = setting.shard_tokens * (hidden * dropout_mask_bytes(layer) + ROUTER_BYTES * moe.num_experts)
    # Norm input and output; expert inputs, up outputs, activations, and expert outputs to be combined.
    table[work.STORED] = 2 * residual_bytes + worked_bytes + up_bytes + act_bytes + routed_bytes + kept_bytes
    table[work.INPUT] = residual_bytes
    table[work.TRANSIENT] = 2 * (worked_bytes + routed_bytes) + up_bytes + act_bytes


def _fill_products(setting: Setting, moe: MoeSpec, worked: FloatArray, table: FloatArray) -> None:
    """Router, and grouped products: one per expert that has tokens."""
    hidden, expert = setting.model.hidden_size, moe.expert
    busy_experts = np.minimum(moe.num_experts / setting.ep, worked)
    rows = worked / busy_experts
    width = expert.intermediate_size / setting.expert_tp
    up_forward, up_backward = gemm_s(setting, rows, expert.num_up_matrices * width, hidden)
    down_forward, down_backward = gemm_s(setting, rows, hidden, width)
    router_forward, router_backward = gemm_s(setting, setting.shard_tokens, moe.num_experts, hidden)
    table[work.MATMUL] = busy_experts * (up_forward + down_forward) + router_forward
    table[work.MATMUL + work.BACKWARD] = busy_experts * (up_backward + down_backward) + router_backward
