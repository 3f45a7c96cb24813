"""What stages cost, remembered: slice planners ask for the same few stages again and again.

Slices of a model overlap, plans of one slice resemble each other, and every plan is costed anew by whoever
checks it. But a model has few kinds of atoms and a portion few configurations, so a stage is one of few. A
:class:`StageBook` costs each of them once, by :mod:`tangram.cost`, for one model, island and micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from tangram.cluster.spec import Island, Portion
from tangram.cost.atoms import TiedShare, itemised_costs
from tangram.cost.stage import stage_cost
from tangram.cost.types import AtomCosts, StageConfig, StageConfigs, StageCost
from tangram.job import Job
from tangram.model.atoms import Atom, atom_kinds
from tangram.model.spec import ModelSpec
from tangram.parallelizers.prices import Same, price_list
from tangram.parallelizers.protocols import SliceRequest, StageChoice, TableRequest

_BOOKS = 2  # Planners take one island after the other.
_MOST_STAGES = 20_000  # Some 40 MiB; then the book starts anew.

Request = SliceRequest | TableRequest

_StageKey = tuple[tuple[int, ...], tuple[bool, ...], int, int, StageConfig, tuple[StageConfig, ...]]
_PriceKey = tuple[tuple[str, ...], int, int, StageConfig]


@dataclass(slots=True, eq=False)
class StageBook:
    """Costs of the stages of one model on the portions of one island, for one micro-batch size.

    Attributes:
        model, atoms, island, micro_batch, num_micro_batches, job: The question.
        classes: Per atom, a number that atoms of equal fingerprint share.
        first_layers: Per atom, its first transformer layer; None for embedding and head.
    """

    model: ModelSpec
    atoms: tuple[Atom, ...]
    island: Island
    micro_batch: int
    num_micro_batches: int
    job: Job
    classes: tuple[int, ...] = field(init=False)
    first_layers: tuple[int | None, ...] = field(init=False)
    _stages: dict[_StageKey, StageCost] = field(default_factory=dict)
    _faults: dict[tuple[_StageKey, int, int], tuple[str, ...]] = field(default_factory=dict)
    _prices: dict[_PriceKey, tuple[AtomCosts, TiedShare]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.classes = atom_kinds(self.atoms)
        self.first_layers = tuple(next(iter(atom.layer_idxs), None) for atom in self.atoms)

    def cost(self, stage: StageChoice, in_flight: int) -> StageCost:
        """Returns :func:`tangram.cost.stage.stage_cost` of a stage; errors as there."""
        if stage.portion.island is not self.island:
            return self._costed(stage, in_flight, itemised_costs)
        key = self._key(stage)
        if key not in self._stages:
            if len(self._stages) >= _MOST_STAGES:
                self._stages.clear()
            self._stages[key] = self._costed(stage, 1, self._priced)
        alone = self._stages[key]
        if in_flight == 1:
            return alone
        return alone.holding(min(in_flight, self.num_micro_batches))

    def faults(
        self, portion: Portion, stage: StageChoice, check: Callable[[StageChoice], Sequence[str]]
    ) -> tuple[str, ...]:
        """Returns what ``check`` says of a stage in an answer about ``portion``; equal ones are checked once.

        Args:
            portion: Of this book's island.
            stage: To check.
            check: May look at the stage's content, portion and configuration only.
        """
        if stage.portion.island is not self.island:
            return tuple(check(stage))
        key = self._key(stage), portion.num_nodes, portion.gpus_per_node
        if key not in self._faults:
            if len(self._faults) >= _MOST_STAGES:
                self._faults.clear()
            self._faults[key] = tuple(check(stage))
        return self._faults[key]

    def _key(self, stage: StageChoice) -> _StageKey:
        portion = stage.portion
        content = self.classes[stage.start : stage.stop]
        where = portion.num_nodes, portion.gpus_per_node
        return content, tuple(stage.recomputed), *where, stage.config, tuple(stage.atom_configs)

    def _costed(self, stage: StageChoice, in_flight: int, itemise: Callable[..., Any]) -> StageCost:
        return stage_cost(
            self.model,
            self.atoms[stage.start : stage.stop],
            stage.portion,
            stage.config,
            self.micro_batch,
            self.num_micro_batches,
            in_flight,
            stage.recomputed,
            self.job,
            itemise=itemise,
            atom_configs=stage.atom_configs,
        )

    def _priced(
        self,
        model: ModelSpec,
        distinct: Sequence[Atom],
        portion: Portion,
        configs: StageConfigs,
        micro_batch: int,
        job: Job,
    ) -> tuple[AtomCosts, TiedShare]:
        """One configuration's part of a table of all: making the table takes little longer than one row."""
        config = configs.row(0)
        key = tuple(a.fingerprint for a in distinct), portion.num_nodes, portion.gpus_per_node, config
        if key not in self._prices:
            prices = price_list(model, self.atoms, portion, job)
            self._prices[key] = prices.costs(distinct, [config], micro_batch)
        return self._prices[key]


def stage_book(request: Request) -> StageBook:
    """Returns the book for the question of a request: its model, atoms, island, micro-batch and job."""
    same = Same(request.model), Same(request.atoms), Same(request.portion.island), Same(request.job)
    return _book(*same, request.micro_batch, request.num_micro_batches)


@lru_cache(maxsize=_BOOKS)
def _book(
    model: Same, atoms: Same, island: Same, job: Same, micro_batch: int, num_micro_batches: int
) -> StageBook:
    """The keys hold the objects, so that their identities stay theirs."""
    return StageBook(
        cast(ModelSpec, model.value),
        cast(tuple[Atom, ...], atoms.value),
        cast(Island, island.value),
        micro_batch,
        num_micro_batches,
        cast(Job, job.value),
    )
