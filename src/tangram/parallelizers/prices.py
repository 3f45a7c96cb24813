"""What atoms cost on one portion, remembered: all micro-batch sizes of a job at once.

The cost model is vectorised over configurations, so some hundred of them take hardly longer than one; and a
search asks about one micro-batch size after the other, first roughly, then in earnest, and again in other
words. So the first question about a portion has all sizes of the job priced in one table, and every question
takes its part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import cast

import numpy as np

from tangram.cluster.spec import Island, Portion
from tangram.cost.atoms import TiedShare, itemised_costs
from tangram.cost.configs import legal_configs
from tangram.cost.types import AtomCosts, IntArray, StageConfig, StageConfigs
from tangram.job import Job
from tangram.model.atoms import Atom
from tangram.model.spec import ModelSpec

_LISTS = 128
_MOST_CELLS = 4096  # kinds of atoms times configurations that a list remembers: about a MiB


class Same:
    """Compares by identity: a model's own hash visits every layer."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value


@dataclass(frozen=True, eq=False)
class _Priced:
    """Prices of one micro-batch size: of all kinds of atoms, under all legal configurations."""

    configs: tuple[StageConfig, ...]
    costs: AtomCosts
    tied: TiedShare

    @cached_property
    def _column(self) -> dict[StageConfig, int]:
        return {config: idx for idx, config in enumerate(self.configs)}

    def columns(self, configs: tuple[StageConfig, ...]) -> slice | IntArray | None:
        """Returns where configurations are; None where one of them is not."""
        if configs == self.configs:
            return slice(None)
        found = [self._column.get(config, -1) for config in configs]
        return None if -1 in found else np.array(found, dtype=np.int64)


@dataclass(slots=True, eq=False)
class PriceList:
    """Costs of the atoms of one model on one portion, for one job.

    Attributes:
        model, atoms, portion, job: The question; ``atoms`` are all of the model's.
    """

    model: ModelSpec
    atoms: Sequence[Atom]
    portion: Portion
    job: Job
    _kinds: dict[str, Atom] = field(init=False)
    _candidates: list[StageConfig] | None = None
    _configs: dict[int, tuple[StageConfig, ...]] = field(default_factory=dict)
    _sizes: dict[int, _Priced] = field(default_factory=dict)
    _num_cells: int = 0

    def __post_init__(self) -> None:
        self._kinds = {}
        for atom in self.atoms:
            self._kinds.setdefault(atom.fingerprint, atom)

    def configs(self, micro_batch: int) -> tuple[StageConfig, ...]:
        """Returns :func:`tangram.cost.configs.legal_configs` of a global micro-batch; errors as there."""
        if self._candidates is None:  # Every dp divides the GPUs, and has to divide the micro-batch.
            num_gpus = self.portion.num_gpus
            self._candidates = legal_configs(self.model, self.portion, num_gpus, self.job)
        if micro_batch not in self._configs:
            legal = (config for config in self._candidates if micro_batch % config.dp == 0)
            self._configs[micro_batch] = tuple(legal)
        return self._configs[micro_batch]

    def costs(
        self, distinct: Sequence[Atom], configs: Sequence[StageConfig], micro_batch: int
    ) -> tuple[AtomCosts, TiedShare]:
        """Returns :func:`tangram.cost.atoms.itemised_costs`; errors as there.

        Args:
            distinct: Atoms of the model, in any selection and order.
            configs: Legal or not.
            micro_batch: Global micro-batch, in samples.
        """
        own = tuple(configs)
        priced = self._at(micro_batch) if self.configs(micro_batch) else None
        columns = None if priced is None else priced.columns(own)
        if priced is None or columns is None:
            table = StageConfigs.of(list(own))
            return itemised_costs(self.model, distinct, self.portion, table, micro_batch, self.job)
        costs, tied = priced.costs, priced.tied
        kinds = [atom.fingerprint for atom in distinct]
        if kinds != list(self._kinds) or not isinstance(columns, slice):
            row = {fingerprint: row for row, fingerprint in enumerate(self._kinds)}
            costs = costs.take(np.array([row[kind] for kind in kinds], dtype=np.int64), columns)
            tied = tied.take(columns)
        if not (any(atom.is_embedding for atom in distinct) and any(atom.is_head for atom in distinct)):
            tied = TiedShare.none(len(own))
            costs = replace(costs, tied_bytes=tied.held.sum(), tied_step_s=tied.step.sum())
        return costs, tied

    def _at(self, micro_batch: int) -> _Priced:
        if micro_batch not in self._sizes:
            sizes = [size for size in self.job.micro_batches() if self.configs(size)]
            if micro_batch not in sizes or len(self._kinds) * self._num_configs(sizes) > _MOST_CELLS:
                sizes = [micro_batch]
            self._price(sizes)
        return self._sizes[micro_batch]

    def _num_configs(self, sizes: Sequence[int]) -> int:
        return sum(len(self.configs(size)) for size in sizes)

    def _price(self, sizes: Sequence[int]) -> None:
        number = [len(self.configs(size)) for size in sizes]
        if self._num_cells + len(self._kinds) * sum(number) > _MOST_CELLS:
            self._sizes.clear()
            self._num_cells = 0
        self._num_cells += len(self._kinds) * sum(number)
        table = StageConfigs.of([config for size in sizes for config in self.configs(size)])
        micro_batches = np.repeat(np.array(sizes, dtype=np.int64), number)
        kinds = tuple(self._kinds.values())
        costs, tied = itemised_costs(self.model, kinds, self.portion, table, micro_batches, self.job)
        stop = 0
        for size, count in zip(sizes, number, strict=True):
            here, stop = slice(stop, stop + count), stop + count
            self._sizes[size] = _Priced(self.configs(size), costs.take(slice(None), here), tied.take(here))


def price_list(model: ModelSpec, atoms: Sequence[Atom], portion: Portion, job: Job) -> PriceList:
    """Returns the prices of a model's atoms on a portion."""
    same = Same(model), Same(atoms), Same(portion.island), Same(job)
    return _price_list(*same, portion.num_nodes, portion.gpus_per_node)


@lru_cache(maxsize=_LISTS)
def _price_list(
    model: Same, atoms: Same, island: Same, job: Same, num_nodes: int, gpus_per_node: int
) -> PriceList:
    """The keys hold the objects, so that their identities stay theirs."""
    portion = Portion(cast(Island, island.value), num_nodes, gpus_per_node)
    return PriceList(
        cast(ModelSpec, model.value), cast(Sequence[Atom], atoms.value), portion, cast(Job, job.value)
    )
