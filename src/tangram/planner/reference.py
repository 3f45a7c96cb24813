"""One GPU alone: what the bounds that prune are made of.

Spreading a slice over more GPUs never takes fewer GPU-seconds or fewer bytes in all than one GPU alone
would (collectives, smaller matrix products and more launches only add; sharding divides). So the
GPU-seconds of an atom on one GPU of an island, divided by the GPUs, is a lower bound on its time on any
portion, and likewise its model states, beside which every GPU loses its least reserve;
tests/planner/test_reference.py tries that on every configuration of every example.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np

from tangram.basis import MeasuredTable
from tangram.cluster.spec import Island, Portion
from tangram.cost.atoms import atom_costs, least_reserve_bytes
from tangram.cost.constants import upper_memory_ratio
from tangram.cost.factors import applies
from tangram.cost.types import BoolArray, FloatArray, StageConfig, StageConfigs
from tangram.job import Job
from tangram.model.atoms import Atom, atom_kinds
from tangram.model.spec import ModelSpec
from tangram.parallelizers.prices import Same

_MOST_PRICES = 12
_REMEMBERED = 64  # islands of one question, and of the one before
_SAFETY = 1.0 - 1e-9  # rounding to nanoseconds must not turn a bound into a lie


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """Costs of each atom on one GPU of each island, for one micro-batch size.

    Attributes:
        gpu_seconds: Forward plus backward; shape ``(num_islands, num_atoms)``.
        state_bytes: Model states that must lie on GPUs; shape ``(num_atoms,)``.
        tied_bytes: Of them, what embedding and head share when one stage holds both.
        num_gpus: Per island; shape ``(num_islands,)``.
        usable_bytes: What model states may take of one GPU per island: its memory without the least reserve
            and the margin on that; shape ``(num_islands,)``.
    """

    gpu_seconds: FloatArray
    state_bytes: FloatArray
    tied_bytes: float
    num_gpus: FloatArray
    usable_bytes: FloatArray

    def least_period_s(self) -> float:
        """Returns a period that no pipeline over all islands can beat.

        Weak duality: with any prices ``y`` per atom, the islands together earn at most
        ``P * sum_k n_k max_a(y_a / c_ka)``, and the model costs ``sum_a y_a``. The prices tried are each
        island's own GPU-seconds.
        """
        return max(worth / float(earned.sum()) for worth, earned in self._earnings()) * _SAFETY

    def least_iteration_s(self, num_micro_batches: int) -> float:
        """Returns an iteration time that no 1F1B pipeline over all islands can beat.

        The last micro-batch cannot leave stage ``b`` before it has passed the stages in front, so
        ``T >= sum_{j<b} t_j + m t_b`` for every ``b``. Hence ``t_b <= (T / m) (1 - 1/m)^b`` if all are to
        hold with equality, and what the stages earn in such times is most when each island is one stage,
        the best earner first. It exceeds ``m`` times the least period where micro-batches are few.
        """
        m = num_micro_batches
        decay = (1.0 - 1.0 / m) ** np.arange(len(self.num_gpus))
        found = (worth / float((np.sort(earned)[::-1] * decay).sum()) for worth, earned in self._earnings())
        return m * max(found) * _SAFETY

    def _prices(self) -> FloatArray:
        """Some prices per atom; any give valid bounds, and more than a dozen take long on many islands."""
        step = -(-len(self.gpu_seconds) // _MOST_PRICES)
        prices: FloatArray = self.gpu_seconds[::step]
        return prices

    def _earnings(self) -> Iterator[tuple[float, FloatArray]]:
        """Yields, per price vector, what the model costs and what each island earns per second at most."""
        for prices in self._prices():
            yield float(prices.sum()), self.num_gpus * (prices / self.gpu_seconds).max(axis=1)

    def slice_times_s(self, island: int, num_gpus: int) -> FloatArray:
        """Returns lower bounds on the time of all slices ``[start, stop)``, shape ``(num_atoms + 1,
        num_atoms + 1)``.
        """
        ahead = np.concatenate([[0.0], np.cumsum(self.gpu_seconds[island])])
        table: FloatArray = (ahead[None, :] - ahead[:, None]) * (_SAFETY / num_gpus)
        return table

    def leaves_enough(self, island: int, num_gpus: int, max_time_s: float) -> BoolArray:
        """Returns which slices are large enough for their GPUs, shape ``(num_atoms + 1, num_atoms + 1)``.

        In a pipeline with period ``max_time_s`` the GPUs that the slice does not take must earn what the
        rest of the model costs; where they cannot, no such pipeline contains the slice on so many GPUs.
        """
        num = len(self.state_bytes)
        enough: BoolArray = np.ones((num + 1, num + 1), dtype=np.bool_)
        if np.isinf(max_time_s):
            return enough
        for prices, (worth, earned) in zip(self._prices(), self._earnings(), strict=True):
            others = earned.sum() - earned[island] * num_gpus / self.num_gpus[island]
            ahead = np.concatenate([[0.0], np.cumsum(prices)])
            held = ahead[None, :] - ahead[:, None]
            enough &= held >= worth * _SAFETY - max_time_s * others
        return enough

    def slice_state_bytes(self, num_gpus: int) -> FloatArray:
        """Returns lower bounds on the model states per GPU of all slices, shape as above."""
        ahead = np.concatenate([[0.0], np.cumsum(self.state_bytes)])
        held = ahead[None, :] - ahead[:, None]
        held[0, -1] -= self.tied_bytes
        table: FloatArray = held * (_SAFETY / num_gpus)
        return table

    def holds_states(self) -> bool:
        """Returns whether all GPUs together have room for the model states alone."""
        return self.total_state_bytes * _SAFETY <= float((self.num_gpus * self.usable_bytes).sum())

    @property
    def total_state_bytes(self) -> float:
        """Model states of the whole model, at least."""
        return float(self.state_bytes.sum()) - self.tied_bytes


def reference(
    model: ModelSpec, atoms: Sequence[Atom], islands: Sequence[Island], micro_batch: int, job: Job
) -> Reference:
    """Prices every atom on one GPU of every island.

    Where layers were measured, formulas count with the least factor of any degrees: no stage is predicted to
    be quicker than that. Nothing is measured with tp across nodes: there the factor is 1.
    """
    position = np.array(atom_kinds(atoms))
    sizes = tuple(job.micro_batches())
    if micro_batch not in sizes:
        sizes = (micro_batch,)
    same = Same(model), Same(atoms), Same(job)
    alone = [_one_gpu(*same, Same(island), sizes) for island in islands]
    usable = [float(island.gpu.usable_memory_bytes) for island in islands]
    return Reference(
        gpu_seconds=np.array([gpu.seconds[sizes.index(micro_batch)][position] for gpu in alone]),
        state_bytes=alone[-1].state_bytes[position],
        tied_bytes=alone[-1].tied_bytes,
        num_gpus=np.array([float(island.num_gpus) for island in islands]),
        usable_bytes=np.array(usable) - np.array([gpu.reserve_bytes for gpu in alone]),
    )


class _OneGpu(NamedTuple):
    """What a GPU of an island says of the kinds of atoms of a model, in order of appearance.

    ``seconds`` has the shape ``(num_sizes, num_kinds)``, ``state_bytes`` ``(num_kinds,)``.
    """

    seconds: FloatArray
    state_bytes: FloatArray
    tied_bytes: float
    reserve_bytes: float


@lru_cache(maxsize=_REMEMBERED)
def _one_gpu(model_: Same, atoms_: Same, job_: Same, island_: Same, sizes: tuple[int, ...]) -> _OneGpu:
    """Prices one GPU at all micro-batch sizes at once: every search over its island asks for all of them."""
    model, job = cast(ModelSpec, model_.value), cast(Job, job_.value)
    alone = Portion(cast(Island, island_.value), 1, 1)
    kinds = {atom.fingerprint: atom for atom in cast(Sequence[Atom], atoms_.value)}
    formulas = replace(job, basis=replace(job.basis, measured=MeasuredTable()))
    config = StageConfigs.of([StageConfig(dp=1, tp=1)] * len(sizes))
    micro_batches = np.array(sizes, dtype=np.int64)
    costs = atom_costs(model, tuple(kinds.values()), alone, config, micro_batches, formulas)
    passes = np.array([costs.forward_s, costs.backward_s])
    if applies(job):
        table = job.basis.measured
        least = np.array([[table.least(kind, alone.island.name, size) for size in sizes] for kind in kinds])
        factors = least.transpose(2, 0, 1)
        passes *= np.minimum(factors, 1.0) if job.pins.allow_cross_node_tp else factors
    states = costs.weight_bytes + costs.gradient_bytes
    if job.pins.offload in ("none", "activations"):
        states = states + costs.optimizer_bytes
    return _OneGpu(
        seconds=(passes[0] + passes[1]).T,
        state_bytes=states[:, 0],
        tied_bytes=float(costs.tied_bytes[0]),
        reserve_bytes=upper_memory_ratio(job.basis) * least_reserve_bytes(model, alone, job),
    )
