"""What one stage costs: the sum over its atoms, itemised.

Whoever planned a stage, it is costed here: one referee for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tangram.cluster.spec import Portion
from tangram.cost.atoms import TiedShare, itemised_costs
from tangram.cost.constants import upper_memory_ratio
from tangram.cost.reshard import stage_reshard_s
from tangram.cost.types import (
    MARGIN,
    STATES,
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

_ITEMS = (*STATES, "activations", "workspace", "reserve")

MEMORY_ITEMS = (*_ITEMS, MARGIN)
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
    atom_configs: Sequence[StageConfig] = (),
) -> StageCost:
    """Returns time and memory of a stage: sums over :func:`tangram.cost.atoms.atom_costs`.

    Memory counts ``min(in_flight, num_micro_batches)`` micro-batches of activations, and the largest
    workspace: of any atom, or of re-running a recomputed one. The margin, on all but model states, makes the
    sum of the items the upper estimate, by which a stage fits or does not.

    Where atoms differ in configuration, each counts as in a stage of its own kind: sums add up, workspace and
    reserve are the largest of any. What changing the layout of activations takes between them
    (:mod:`tangram.cost.reshard`) is the component ``reshard``, half of it in either pass.

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
        atom_configs: Configuration of each atom where they differ, the first of which is ``config``; empty
            where all have that.

    Raises:
        InputError: The GPU has no arithmetic in the job's precision, or an override of its basis is out of
            range.
        UnknownNameError: An override has an unknown name.
        InternalError: ``recomputed`` or ``atom_configs`` is not as long as ``atoms``, a configuration is not
            one of this portion, or two ends that share their matrix have different ones.
    """
    configs = tuple(atom_configs) or (config,) * len(atoms)
    different = tuple(dict.fromkeys(atom_configs)) or (config,)
    _check(atoms, config, configs, recomputed)
    _check_legal(model, atoms, portion, different, configs, micro_batch)
    numbers, distinct = _distinct(atoms)
    embedding = next((idx for idx, atom in enumerate(atoms) if atom.is_embedding), None)
    flags = np.asarray(recomputed, dtype=np.bool_)
    shares = []
    for one in different:
        here = np.array([c == one for c in configs]) if atom_configs else np.ones(len(atoms), dtype=np.bool_)
        costs, tied = itemise(model, distinct, portion, StageConfigs.of([one]), micro_batch, job)
        counts = np.bincount(numbers, weights=here, minlength=len(distinct)).astype(np.float64)
        again = np.bincount(numbers, weights=flags & here, minlength=len(distinct)).astype(np.float64)
        # Of a matrix that both ends of the stage share, the copy of the embedding is not there.
        holds_copy = embedding is None or configs[embedding] == one
        shares.append(_share(costs, tied if holds_copy else None, counts, again))
    cost = _together(shares, portion, job, min(in_flight, num_micro_batches))
    if len(shares) == 1:
        return cost
    return _resharded(cost, stage_reshard_s(model, atoms, portion, configs, micro_batch, job))


@dataclass(frozen=True, slots=True)
class _Share:
    """What the atoms of one configuration add to a stage.

    Attributes:
        seconds: Forward, backward with recomputation, step end.
        state_bytes: Weights, gradients, optimizer.
        activation_bytes: Per micro-batch in flight.
        workspace_bytes, reserve_bytes: Of which the largest of all shares counts.
        components: Of the seconds.
    """

    seconds: tuple[float, float, float]
    state_bytes: tuple[float, float, float]
    activation_bytes: float
    workspace_bytes: float
    reserve_bytes: float
    components: dict[str, float]


def _share(costs: AtomCosts, tied: TiedShare | None, counts: FloatArray, again: FloatArray) -> _Share:
    """Adds up atoms of one configuration.

    Args:
        costs: Of the stage's distinct atoms; one configuration.
        tied: What is counted twice.
        counts, again: How many of each distinct atom there are, and are recomputed in full.
    """
    recompute_s = _sum(again, costs.recompute_s)
    components = {name: _sum(counts, seconds) for name, seconds in costs.components.items()}
    states = [_sum(counts, s) for s in (costs.weight_bytes, costs.gradient_bytes, costs.optimizer_bytes)]
    step_s = _sum(counts, costs.step_s)
    if tied is not None:
        for name, seconds in tied.step._asdict().items():
            components[name] -= float(seconds[0])
        states = [held - float(double[0]) for held, double in zip(states, tied.held, strict=True)]
        step_s -= float(costs.tied_step_s[0])
    components["recompute"] = recompute_s
    return _Share(
        seconds=(_sum(counts, costs.forward_s), _sum(counts, costs.backward_s) + recompute_s, step_s),
        state_bytes=(states[0], states[1], states[2]),
        activation_bytes=_sum(counts - again, costs.stored_bytes)
        + _sum(again, costs.recomputed_stored_bytes),
        workspace_bytes=max(
            float(np.where(counts > 0, costs.workspace_bytes[:, 0], 0.0).max()),
            float(np.where(again > 0, costs.recompute_workspace_bytes[:, 0], 0.0).max()),
        ),
        reserve_bytes=float(costs.reserve_bytes[0]),
        components=components,
    )


def _together(shares: Sequence[_Share], portion: Portion, job: Job, num_held: int) -> StageCost:
    """Returns a stage of these shares that holds the activations of ``num_held`` micro-batches."""
    ratio = upper_memory_ratio(job.basis)
    activation_bytes = sum(share.activation_bytes for share in shares)
    memory = (
        *(sum(items) for items in zip(*(share.state_bytes for share in shares), strict=True)),
        num_held * activation_bytes,
        max(share.workspace_bytes for share in shares),
        max(share.reserve_bytes for share in shares),
    )
    forward_s, backward_s, step_s = (sum(s) for s in zip(*(share.seconds for share in shares), strict=True))
    return StageCost(
        forward_s=forward_s,
        backward_s=backward_s,
        step_s=step_s,
        memory=with_margin(dict(zip(_ITEMS, memory, strict=True)), ratio),
        activation_bytes=activation_bytes,
        upper_ratio=ratio,
        capacity_bytes=portion.island.gpu.usable_memory_bytes,
        components={name: sum(share.components[name] for share in shares) for name in shares[0].components},
    )


def _resharded(cost: StageCost, one_way_s: float) -> StageCost:
    return replace(
        cost,
        forward_s=cost.forward_s + one_way_s,
        backward_s=cost.backward_s + one_way_s,
        components={**cost.components, "reshard": 2 * one_way_s},
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
    atoms: Sequence[Atom], config: StageConfig, configs: Sequence[StageConfig], recomputed: Sequence[bool]
) -> None:
    if not atoms or len(recomputed) != len(atoms):
        raise InternalError(f"{len(recomputed)} recompute flags for {len(atoms)} atoms")
    if len(configs) != len(atoms) or configs[0] != config:
        raise InternalError(f"{len(configs)} configurations, the first {configs[0]}, for {len(atoms)} atoms")


def _check_legal(
    model: ModelSpec,
    atoms: Sequence[Atom],
    portion: Portion,
    different: Sequence[StageConfig],
    configs: Sequence[StageConfig],
    micro_batch: int,
) -> None:
    for one in different:
        if one.num_gpus != portion.num_gpus or micro_batch % one.dp:
            raise InternalError(
                f"{one} is no configuration of {portion.num_gpus} GPUs and a micro-batch of {micro_batch}"
            )
    if model.shares_embedding and atoms[0].is_embedding and atoms[-1].is_head and configs[0] != configs[-1]:
        raise InternalError("embedding and head share a matrix, but not their configuration")


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
