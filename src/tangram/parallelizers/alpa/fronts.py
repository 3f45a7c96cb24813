"""From the intra-operator pass to configurations: which degrees are worth a stage on a submesh.

Every mesh of the submesh and every expressible assignment of its axes is charged, class of atoms by class. An
assignment goes when another one is no worse in time and in bytes for all classes: the price of a byte depends
on the stage's place in the pipeline, which is for the inter-operator pass to know. ZeRO's stages are tried
for each assignment that is left, as Alpa's rewrite comes after its optimiser.

Degrees that no mesh of two axes has in the order of an engine's ranks are charged in another order, with
experts on neighbours as the engine has them, and rounded to the configuration of these degrees.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tangram.cluster.spec import Portion
from tangram.cost.configs import legal_configs
from tangram.cost.types import BoolArray, FloatArray, StageConfig
from tangram.job import Recompute
from tangram.model.atoms import Atom
from tangram.parallelizers.alpa.charges import Prices
from tangram.parallelizers.alpa.intra import DEFAULT_ZERO, Roles, expressed, roles_on
from tangram.parallelizers.alpa.meshes import LogicalMesh, logical_meshes
from tangram.parallelizers.book import StageBook

_SLACK = 1e-9  # Equal sums that were rounded in another order.

Degrees = tuple[int, int, int, int]


def stage_configs(book: StageBook, portion: Portion) -> list[StageConfig]:
    """Returns the configurations that the intra-operator pass leaves of the legal ones, in their order.

    Neither context parallelism, which Alpa has not, nor offloading, unless the user dictates it, nor
    selective recomputation, likewise.
    """
    pins = book.job.pins
    legal = [
        c
        for c in legal_configs(book.model, portion, book.micro_batch, book.job)
        if c.cp == 1
        and c.selective is (pins.recompute is Recompute.SELECTIVE)
        and not (pins.offload == "auto" and (c.offload_optimizer or c.offload_activations))
    ]
    if not legal:
        return []
    degrees = list(dict.fromkeys((c.dp, c.tp, c.ep, c.expert_tp) for c in legal))
    kept = set(_worth(book, portion, degrees, DEFAULT_ZERO if pins.zero is None else pins.zero))
    return [c for c in legal if (c.dp, c.tp, c.ep, c.expert_tp) in kept]


def _worth(book: StageBook, portion: Portion, degrees: Sequence[Degrees], zero: int) -> list[Degrees]:
    prices = Prices.of(book.model, portion, book.micro_batch, book.num_micro_batches, book.job)
    atoms = [book.atoms[book.classes.index(number)] for number in range(max(book.classes) + 1)]
    found: dict[Degrees, FloatArray] = {}
    for ordered in (True, False):
        for mesh in logical_meshes(portion, prices.constants, near_exchanges=not ordered):
            roles = [
                r
                for r in roles_on(mesh.shape, moe=book.model.has_moe, ordered=ordered)
                if r.degrees in degrees and r.degrees not in found
            ]
            if roles:
                costs = _charged(prices, atoms, mesh, roles, zero)
                found.update({r.degrees: costs[:, idx] for idx, r in enumerate(roles)})
    if not found:
        return []
    table = np.stack(list(found.values()), axis=1)
    return [d for d, good in zip(found, ~_dominated(table), strict=True) if good]


def _charged(
    prices: Prices, atoms: Sequence[Atom], mesh: LogicalMesh, roles: Sequence[Roles], zero: int
) -> FloatArray:
    """Returns time and bytes of every class under every role; shape ``(3 * num_classes, num_roles)``."""
    rows: list[list[float]] = []
    for atom in atoms:
        costs = expressed(prices, atom.parts, mesh, roles, zero)
        rows.append([c.seconds for c in costs])
        rows.append([c.state_bytes for c in costs])
        rows.append([c.stored_bytes for c in costs])
    return np.array(rows)


def _dominated(table: FloatArray) -> BoolArray:
    """Returns which columns another one is no worse than in any row; of equal ones the first stays."""
    low = table * (1 - _SLACK)
    no_worse = (low[:, :, None] <= table[:, None, :]).all(axis=0)
    num = table.shape[1]
    earlier = np.triu(np.ones((num, num), dtype=np.bool_), 1)
    better = no_worse & (~no_worse.T | earlier)
    return np.asarray(better.any(axis=0), dtype=np.bool_)
