"""What executable stages lose: the free optimum of a stage against the best that its configuration can say.

Both are charged on the same graph by the same prices. docs/parallelizers.md has a table of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tangram.model.atoms import Atom, AtomPart
from tangram.parallelizers.alpa.charges import Prices
from tangram.parallelizers.alpa.intra import (
    DEFAULT_ZERO,
    Problem,
    Roles,
    expressed,
    free_table,
    indivisible,
    problem_of,
    roles_on,
    strung,
)
from tangram.parallelizers.alpa.meshes import LogicalMesh, logical_meshes
from tangram.parallelizers.alpa.strategies import Strategy


@dataclass(frozen=True, slots=True)
class Loss:
    """Two optima on a mesh.

    Attributes:
        free_s: The free optimum of one micro-batch, with its share of the step end.
        expressed_s: The best expressible assignment; ``inf`` without any.
        roles: Its roles; None without any.
    """

    free_s: float
    expressed_s: float
    roles: Roles | None


@dataclass(frozen=True, slots=True)
class PartsLoss(Loss):
    """The same for a run of parts, with the free optimum's strategies by operator."""

    chosen: dict[str, Strategy]


def parts_loss(
    prices: Prices, parts: Sequence[AtomPart], mesh: LogicalMesh, zero: int = DEFAULT_ZERO
) -> PartsLoss:
    """Compares the two for a run of parts on a mesh."""
    problem = problem_of(prices, parts, mesh, zero)
    solved = problem.eliminated()
    able = _able([problem], mesh)
    best = min(expressed(prices, parts, mesh, able, zero), key=lambda e: e.seconds) if able else None
    return PartsLoss(
        float(solved.costs),
        best.seconds if best else float("inf"),
        best.roles if best else None,
        problem.chosen(solved.assignment()),
    )


def stage_loss(prices: Prices, atoms: Sequence[Atom], zero: int = DEFAULT_ZERO) -> Loss:
    """Compares the two for a stage that holds these atoms, each with its best mesh.

    The free optimum may split every layer in its own way; tables of equal atoms are made once.
    """
    kinds = [atom.fingerprint for atom in atoms]
    distinct = {kind: atoms[kinds.index(kind)].parts for kind in dict.fromkeys(kinds)}
    free, best, roles = float("inf"), float("inf"), None
    for mesh in logical_meshes(prices.portion, prices.constants):
        problems = {kind: problem_of(prices, parts, mesh, zero) for kind, parts in distinct.items()}
        tables = {kind: free_table(problem) for kind, problem in problems.items()}
        free = min(free, strung([tables[kind] for kind in kinds]))
        able = _able(list(problems.values()), mesh)
        said = {kind: expressed(prices, parts, mesh, able, zero) for kind, parts in distinct.items()}
        for idx, own in enumerate(able):
            seconds = sum(said[kind][idx].seconds for kind in kinds)
            if seconds < best:
                best, roles = seconds, own
    return Loss(free, best, roles)


def _able(problems: Sequence[Problem], mesh: LogicalMesh) -> list[Roles]:
    """Returns the roles whose degrees divide what they split."""
    graphs = [problem.graph for problem in problems]
    moe = any(op.name == "expert_up" for graph in graphs for op in graph.operators)
    return [
        roles
        for roles in roles_on(mesh.shape, moe=moe)
        if not any(indivisible(graph, roles) for graph in graphs)
    ]
