"""Which configurations a stage may have: the search space, in one place.

All combinations of:

* **tp**: divides the GPUs of a node (all GPUs of the portion in a domain, or with ``allow_cross_node_tp``),
  the query heads, the key/value heads and the feed-forward widths of every layer. Key/value heads are never
  replicated.
* **cp**: 1 below 32,768 tokens, where ring or gathered attention does not pay; from there on (or when pinned)
  any divisor with ``cp * tp`` dividing the sequence.
* **dp**: the rest; divides the micro-batch.
* **ep, expert tp**: expert tp is 1 or tp, ep divides the number of experts, ``ep * expert_tp`` divides the
  GPUs, expert tp divides the experts' width. 1 and 1 for models without experts.
* **zero**: 1, 2, 3 where there are replicas, else 0. Stage 0 only when pinned: stage 1 moves no more bytes
  and holds less.
* **selective** recomputation: where attention is unfused (a fused kernel leaves nothing to save), or pinned.
  Full recomputation is chosen atom by atom, not here.
* **offload**: as pinned; ``auto`` tries all four.

Pins replace the choice. A pin that no configuration can honour leaves an empty list.
"""

from __future__ import annotations

from itertools import product
from math import gcd

from tangram.cluster.spec import Portion
from tangram.cost.constants import matmul_flop_per_s
from tangram.cost.setting import FLASH, attention_kernel
from tangram.cost.types import StageConfig
from tangram.job import Job, Recompute, divisors
from tangram.model.spec import FeedForwardSpec, ModelSpec

CONTEXT_PARALLEL_TOKENS = 32_768
"""Shortest sequence for which context parallelism is searched."""

_OFFLOADS = {
    "none": [(False, False)],
    "optimizer": [(True, False)],
    "activations": [(False, True)],
    "both": [(True, True)],
    "auto": [(False, False), (True, False), (False, True), (True, True)],
}


def legal_configs(model: ModelSpec, portion: Portion, micro_batch: int, job: Job) -> list[StageConfig]:
    """Returns the configurations of a stage on a portion, in a fixed order: tp, cp, expert tp, ep, zero up.

    Args:
        model: The whole model: a configuration must suit every layer.
        portion: The GPUs.
        micro_batch: Global micro-batch, in samples.
        job: Sequence length, precision and pins.

    Raises:
        InputError: The GPU has no arithmetic in the job's precision.
    """
    gpu = portion.island.gpu
    matmul_flop_per_s(gpu, job.precision)
    selectives = _selectives(attention_kernel(gpu, job.precision) == FLASH, job)
    offloads = _OFFLOADS[job.pins.offload]
    configs = []
    for tp, cp in _tensor_context(model, portion, job):
        dp = portion.num_gpus // (tp * cp)
        if micro_batch % dp or (job.pins.dp or dp) != dp:
            continue
        experts = _expert_degrees(model, portion.num_gpus, tp, job)
        zeros = _zero_stages(dp * cp, job)
        for (expert_tp, ep), zero, selective, offload in product(experts, zeros, selectives, offloads):
            configs.append(StageConfig(dp, tp, cp, ep, expert_tp, zero, selective, *offload))
    return configs


def tensor_parallel_degrees(model: ModelSpec, gpus: int) -> list[int]:
    """Returns the tp degrees that divide ``gpus`` and suit every layer of the model, ascending."""
    common = gpus
    for layer in model.distinct_layers:
        common = gcd(common, layer.attention.num_heads, layer.attention.num_kv_heads)
        if isinstance(layer.feed_forward, FeedForwardSpec):
            common = gcd(common, layer.feed_forward.intermediate_size)
        elif layer.feed_forward.shared is not None:
            common = gcd(common, layer.feed_forward.shared.intermediate_size)
    return divisors(common)


def _tensor_context(model: ModelSpec, portion: Portion, job: Job) -> list[tuple[int, int]]:
    pins = job.pins
    scope = portion.num_gpus if pins.allow_cross_node_tp else portion.joined_gpus
    found = []
    for tp in tensor_parallel_degrees(model, scope):
        if (pins.tp or tp) != tp:
            continue
        rest = portion.num_gpus // tp
        if pins.cp is not None:
            degrees = [pins.cp] if rest % pins.cp == 0 else []
        else:
            degrees = divisors(rest) if job.seq_len >= CONTEXT_PARALLEL_TOKENS else [1]
        found += [(tp, cp) for cp in degrees if job.seq_len % (cp * tp) == 0]
    return found


def _expert_degrees(model: ModelSpec, num_gpus: int, tp: int, job: Job) -> list[tuple[int, int]]:
    """Returns pairs (expert tp, ep)."""
    pinned = job.pins.ep
    mixtures = [layer.moe for layer in model.distinct_layers if layer.moe is not None]
    if not mixtures:
        return [(1, 1)] if pinned in (None, 1) else []
    num_experts = gcd(*(moe.num_experts for moe in mixtures))
    width = gcd(*(moe.expert.intermediate_size for moe in mixtures))
    pairs = []
    for expert_tp in dict.fromkeys((1, tp)):
        if width % expert_tp:
            continue
        degrees = divisors(gcd(num_experts, num_gpus // expert_tp))
        pairs += [(expert_tp, ep) for ep in degrees if (pinned or ep) == ep]
    return pairs


def _zero_stages(replicas: int, job: Job) -> list[int]:
    if job.pins.zero is not None:
        return [job.pins.zero]
    return [1, 2, 3] if replicas > 1 else [0]


def _selectives(flash: bool, job: Job) -> list[bool]:
    pinned = job.pins.recompute
    if pinned is not None:
        return [pinned is Recompute.SELECTIVE]
    return [False] if flash else [False, True]
