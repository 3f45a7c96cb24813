"""Times of atoms that were measured: the formulas' times, multiplied by the factors of the job's basis.

A factor is that of an atom on an island at a tp and a number of samples on the rank
(:class:`tangram.basis.MeasuredTable`). It multiplies the kernels of the pass and, where collectives were
timed with them, the tensor-parallel ones, those of experts too, as long as these stay inside a node.
Everything else (ZeRO, expert and context parallelism, offload, the optimizer) rests on formulas. What has no
factor does so altogether.

Layers are measured with whole sequences and all experts on the rank; under cp and ep the same factor is used.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tangram.basis import FactorKey
from tangram.cost import work
from tangram.cost.links import TP
from tangram.cost.setting import Setting
from tangram.cost.types import BoolArray, FloatArray
from tangram.job import Job
from tangram.model.atoms import Atom


def applies(job: Job) -> bool:
    """Returns whether the basis of a job holds factors that were made for it."""
    table = job.basis.measured
    return bool(table) and (table.precision, table.seq_len) == (job.precision.value, job.seq_len)


def factored_times(setting: Setting, atoms: Sequence[Atom], island: str, times: FloatArray) -> FloatArray:
    """Returns times that agree with what was measured.

    Args:
        setting: Of the configurations.
        atoms: The distinct atoms.
        island: Name of the island.
        times: By formula; shape ``(NUM_TIMES, num_atoms, num_configs)``. It is left as it is.
    """
    return multiplied(setting, times, *_factors(setting, atoms, island))


def multiplied(
    setting: Setting, times: FloatArray, forward: FloatArray, backward: FloatArray, with_tp: BoolArray
) -> FloatArray:
    """Returns times multiplied by factors.

    Args:
        setting: Of the configurations.
        times: By formula; shape ``(NUM_TIMES, num_atoms, num_configs)``. It is left as it is.
        forward, backward: Factors of the two passes; shape ``(num_atoms, num_configs)``.
        with_tp: Whether they hold for compute and tensor-parallel collectives together, or for compute alone.
    """
    # Without expert parallelism, what experts exchange is the gather and scatter of their tensor parallelism.
    whole_experts = setting.ep == 1
    inside = setting.groups.nodes[TP] == 1
    # What was timed together with collectives inside a node says nothing of a group that leaves it.
    known = inside | ~with_tp
    forward, backward = np.where(known, forward, 1.0), np.where(known, backward, 1.0)
    found = times.copy()
    for begin, factor in ((0, forward), (work.BACKWARD_S, backward)):
        found[begin : begin + work.NUM_COMPUTE] *= factor
        found[begin + work.TP_S] *= np.where(with_tp, factor, 1.0)
        found[begin + work.EP_S] *= np.where(with_tp & whole_experts, factor, 1.0)
    return found


def _factors(
    setting: Setting, atoms: Sequence[Atom], island: str
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Forward and backward factors, and whether collectives are in; shape ``(num_atoms, num_configs)``."""
    table = setting.job.basis.measured
    points = list(zip(setting.configs.tp.tolist(), setting.samples.astype(np.int64).tolist(), strict=True))
    column = {point: idx for idx, point in enumerate(dict.fromkeys(points))}
    values = np.ones((3, len(atoms), len(column)))
    values[2] = 0.0
    for row, atom in enumerate(atoms):
        for (tp, samples), idx in column.items():
            factor = table.find(FactorKey(atom.fingerprint, island, tp, samples))
            if factor is not None:
                values[:, row, idx] = factor.forward, factor.backward, factor.includes_tp_comm
    spread = values[:, :, [column[point] for point in points]]
    return spread[0], spread[1], spread[2] > 0
