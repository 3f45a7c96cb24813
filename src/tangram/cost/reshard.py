"""Activations that change their layout inside a stage: between atoms whose degrees differ.

The residual stream of a micro-batch lies on the ranks by (dp, cp, tp): samples over dp, tokens over cp and,
with sequence parallelism, over tp. Both layouts give every rank an equal share, and
``lcm(cp * tp, cp' * tp')`` neighbouring ranks hold the same samples in either, so they exchange among
themselves: an all-to-all in which a rank keeps one part of as many. Gradients take the way back. Nothing
hides it.

Simplifications: a group that shares less than that (cp 2 in place of tp 2) is priced like any other; what the
exchange needs beside the two shares, and communicators that only one of the layouts has, take no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

import numpy as np

from tangram.cluster.spec import Portion
from tangram.cost.constants import constants_of
from tangram.cost.links import EP, Groups, LinkRates
from tangram.cost.transfer import boundary_bytes
from tangram.cost.types import FloatArray, StageConfig, StageConfigs
from tangram.job import Job
from tangram.model.atoms import Atom
from tangram.model.spec import ModelSpec

Layout = tuple[int, int, int]
"""Degrees (dp, cp, tp), which say where activations lie."""


def layout_of(config: StageConfig) -> Layout:
    """Returns the degrees that decide where activations lie; ZeRO and experts do not."""
    return config.dp, config.cp, config.tp


def exchange_s(portion: Portion, layouts: Sequence[Layout], num_bytes: float, job: Job) -> FloatArray:
    """Returns what one change of layout takes, from every layout to every other.

    Args:
        portion: The stage's GPUs.
        layouts: Of these GPUs.
        num_bytes: Of the whole micro-batch (:func:`tangram.cost.transfer.boundary_bytes`).
        job: Whose constants count.

    Returns:
        Seconds one way; shape ``(num_layouts, num_layouts)``, symmetric, 0 on the diagonal.
    """
    sizes = [[1 if a == b else lcm(a[1] * a[2], b[1] * b[2]) for b in layouts] for a in layouts]
    distinct = sorted({size for row in sizes for size in row})
    gpus = portion.num_gpus
    groups = Groups.of(portion, StageConfigs.of([StageConfig(dp=gpus, tp=1, ep=size) for size in distinct]))
    constants = constants_of(portion.island.gpu, job.basis)
    rates = LinkRates.of(groups, constants.stack, constants.cluster)
    seconds = rates.latency_s[EP] + num_bytes / gpus * rates.all_to_all_s_per_byte
    found: FloatArray = np.where(np.array(distinct) > 1, seconds, 0.0)[np.searchsorted(distinct, sizes)]
    return found


def stage_reshard_s(
    model: ModelSpec,
    atoms: Sequence[Atom],
    portion: Portion,
    configs: Sequence[StageConfig],
    micro_batch: int,
    job: Job,
) -> float:
    """Returns what all changes of layout inside a stage take per micro-batch, one way.

    Args:
        model: The whole model.
        atoms: The stage's atoms, first to last.
        portion: The stage's GPUs.
        configs: Of each atom.
        micro_batch: Global micro-batch, in samples.
        job: The job.
    """
    total = 0.0
    for atom, front, behind in zip(atoms, configs, configs[1:], strict=False):
        a, b = layout_of(front), layout_of(behind)
        if a != b:
            num_bytes = boundary_bytes(model, atom, micro_batch, job)
            total += float(exchange_s(portion, [a, b], num_bytes, job)[0, 1])
    return total
