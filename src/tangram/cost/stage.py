"""What one stage costs: the sum over its atoms, itemised.

Whoever planned a stage, it is costed here: one referee for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tangram.cluster.spec import Portion
from tangram.cost.atoms import TiedShare, itemised_costs
from tangram.cost.constants import upper_memory_ratio
from tangram.cost.types import (
    MARGIN,
    AtomCosts,
    FloatArray,
    StageConfig,
    StageConfigs,
    StageCost,
    with_margin,
)
from tangram.errors import InternalError
from tangram.job import Job
from tangram.model.atoms import Atom
from tangram.model.spec import ModelSpec

_ESTIMATED = ("weights", "gradients", "optimizer", "activations", "workspace", "reserve")

MEMORY_ITEMS = (*_ESTIMATED, MARGIN)
"""Keys of ``StageCost.memory``, in print order."""


def stage_cost(
    model: ModelSpec,
    atoms: Sequence[Atom],
    portion: Portion,
    config: StageConfig,
    micro_batch: int,
    num_micro_batches: int,
    in_flight: int,
    recomputed: Sequence[bool],
    job: Job,
    *,
    itemise: Callable[..., tuple[AtomCosts, TiedShare]] = itemised_costs,
) -> StageCost:
    """Returns time and memory of a stage: sums over :func:`tangram.cost.atoms.atom_costs`.

    Memory counts ``min(in_flight, num_micro_batches)`` micro-batches of activations, and the largest
    workspace: of any atom, or of re-running a recomputed one. The margin comes on top of all other items, so
    that their sum is the upper estimate, by which a stage fits or does not.

    Args:
        model: The whole model.
        atoms: The stage's atoms, first to last.
        portion: The stage's GPUs.
        config: A legal configuration of it.
        micro_batch: Global micro-batch, in samples.
        num_micro_batches: Per step.
        in_flight: Micro-batches in flight at this stage.
        recomputed: Per atom, whether it is recomputed in full.
        job: The job.
        itemise: Answers like :func:`tangram.cost.atoms.itemised_costs`; a caller may have answers in store.

    Raises:
        InputError: The GPU has no arithmetic in the job's precision, or an override of its basis is out of
            range.
        UnknownNameError: An override has an unknown name.
        InternalError: ``recomputed`` is not as long as ``atoms``, or the configuration is not one of this
            portion.
    """
    _check(atoms, portion, config, micro_batch, recomputed)
    numbers, distinct = _distinct(atoms)
    costs, tied = itemise(model, distinct, portion, StageConfigs.of([config]), micro_batch, job)
    flags = np.asarray(recomputed, dtype=np.bool_)
    again = np.bincount(numbers, weights=flags, minlength=len(distinct)).astype(np.float64)
    counts = np.bincount(numbers, minlength=len(distinct)).astype(np.float64)
    activation_bytes = _sum(counts - again, costs.stored_bytes) + _sum(again, costs.recomputed_stored_bytes)
    recompute_s = _sum(again, costs.recompute_s)
    workspace = max(
        float(costs.workspace_bytes.max()),
        float(np.where(again > 0, costs.recompute_workspace_bytes[:, 0], 0.0).max()),
    )
    components = {name: _sum(counts, seconds) for name, seconds in costs.components.items()}
    for name, seconds in tied.step._asdict().items():
        components[name] -= float(seconds[0])
    components["recompute"] = recompute_s
    ratio = upper_memory_ratio(job.basis)
    memory = (
        _sum(counts, costs.weight_bytes) - float(tied.held.weights[0]),
        _sum(counts, costs.gradient_bytes) - float(tied.held.gradients[0]),
        _sum(counts, costs.optimizer_bytes) - float(tied.held.optimizer[0]),
        min(in_flight, num_micro_batches) * activation_bytes,
        workspace,
        float(costs.reserve_bytes[0]),
    )
    return StageCost(
        forward_s=_sum(counts, costs.forward_s),
        backward_s=_sum(counts, costs.backward_s) + recompute_s,
        step_s=_sum(counts, costs.step_s) - float(costs.tied_step_s[0]),
        memory=with_margin(dict(zip(_ESTIMATED, memory, strict=True)), ratio),
        activation_bytes=activation_bytes,
        upper_ratio=ratio,
        capacity_bytes=portion.island.gpu.usable_memory_bytes,
        components=components,
    )


def recompute_order(costs: AtomCosts, config: int, recomputable: Sequence[bool] | None = None) -> list[int]:
    """Returns the order in which atoms are recomputed in full, until a stage fits.

    Most bytes saved per second first; an atom that saves bytes in no time comes before all others; ties go by
    position.

    Args:
        costs: Of the atoms.
        config: Index of the configuration.
        recomputable: Which atoms may be; by default all.

    Returns:
        Atom positions.
    """
    saved = costs.stored_bytes[:, config] - costs.recomputed_stored_bytes[:, config]
    seconds = costs.recompute_s[:, config]
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(seconds > 0, saved / seconds, np.where(saved > 0, np.inf, 0.0))
    order = np.argsort(-rate, kind="stable")
    return [int(i) for i in order if recomputable is None or recomputable[i]]


def _check(
    atoms: Sequence[Atom], portion: Portion, config: StageConfig, micro_batch: int, recomputed: Sequence[bool]
) -> None:
    if not atoms or len(recomputed) != len(atoms):
        raise InternalError(f"{len(recomputed)} recompute flags for {len(atoms)} atoms")
    if config.num_gpus != portion.num_gpus or micro_batch % config.dp:
        raise InternalError(
            f"{config} is no configuration of {portion.num_gpus} GPUs and a micro-batch of {micro_batch}"
        )


def _distinct(atoms: Sequence[Atom]) -> tuple[list[int], list[Atom]]:
    """Numbers atoms by content, in order of first appearance.

    Tables over contents add up the same products in the same order, so both see the same sums.
    """
    known: dict[str, int] = {}
    numbers = [known.setdefault(atom.fingerprint, len(known)) for atom in atoms]
    return numbers, [atoms[numbers.index(number)] for number in range(len(known))]


def _sum(counts: FloatArray, values: FloatArray) -> float:
    total = 0.0
    for count, value in zip(counts.tolist(), values[:, 0].tolist(), strict=True):
        total += count * value
    return total
