"""The intra-operator pass: what each axis of a mesh splits, operator by operator, in the least time.

Two optima of the same graph and the same charges:

* the *free* one, over all strategies of all operators: exact, by variable elimination. Layers are strung
  together by min-plus products of their tables over the sharding of the residual stream, so repeats cost
  nothing;
* the *expressible* ones: the assignments that a :class:`tangram.cost.types.StageConfig` can say, and so an
  engine run. Every axis has one role in the dense operators, samples (``dp``) or tensor (``tp``, with the
  residual stream split along the sequence), and one in the experts: experts (``ep``), columns
  (``expert_tp``), or the tokens that are there already.

The free optimum is at least as fast as any expressible one; :mod:`tangram.parallelizers.alpa.losses` says by
how much. What an engine
cannot run is lost: a split of a weight along the contraction, mixtures of roles inside of a layer, experts on
the slower axis with their replicas on the faster one, mixtures of exchange and gather between tokens and
experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from tangram.cost.types import FloatArray
from tangram.model.atoms import AtomPart
from tangram.parallelizers.alpa.charges import Charged, Prices
from tangram.parallelizers.alpa.einsums import Graph, Operator
from tangram.parallelizers.alpa.elimination import Eliminated, eliminate
from tangram.parallelizers.alpa.graphs import graph_of
from tangram.parallelizers.alpa.meshes import LogicalMesh
from tangram.parallelizers.alpa.strategies import NOTHING, SEQUENCE, Spec, Strategy, strategies_of

DEFAULT_ZERO = 1
"""ZeRO stage of the free optimum: what Alpa's rewrite gives with gradients accumulated over micro-batches."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A graph on a mesh, with all its costs.

    Attributes:
        graph, mesh: What is split over what.
        strategies: Per operator.
        charged: What they cost.
        pairs: Resharding in seconds between the strategies of two operators, by their numbers.
    """

    graph: Graph
    mesh: LogicalMesh
    strategies: tuple[list[Strategy], ...]
    charged: tuple[Charged, ...]
    pairs: dict[tuple[int, int], FloatArray]

    def eliminated(self, keep: Sequence[int] = ()) -> Eliminated:
        """Minimises the time over the strategies of all operators but those to keep."""
        return eliminate([c.seconds for c in self.charged], self.pairs, keep)

    def seconds(self, assignment: Sequence[int]) -> float:
        """Returns the time of one assignment."""
        own = sum(float(c.seconds[v]) for c, v in zip(self.charged, assignment, strict=True))
        return own + sum(float(costs[assignment[a], assignment[b]]) for (a, b), costs in self.pairs.items())

    def chosen(self, assignment: Sequence[int]) -> dict[str, Strategy]:
        """Returns the strategies of an assignment by the names of their operators."""
        named = zip(self.graph.operators, self.strategies, assignment, strict=True)
        return {operator.name: options[v] for operator, options, v in named}


def problem_of(
    prices: Prices,
    parts: Sequence[AtomPart],
    mesh: LogicalMesh,
    zero: int = DEFAULT_ZERO,
    roles: Sequence[Roles] | None = None,
) -> Problem:
    """Returns the problem of a run of parts on a mesh.

    Args:
        prices: Of the portion.
        parts: What runs.
        mesh: On what.
        zero: ZeRO stage of all weights.
        roles: Only the strategies of these; None for all.
    """
    graph = graph_of(prices.model, parts, prices.micro_batch, prices.job)
    if roles is None:
        options = tuple(strategies_of(op, mesh.shape, graph.sizes) for op in graph.operators)
    else:
        options = tuple(list(dict.fromkeys(r.strategy(op) for r in roles)) for op in graph.operators)
    charged = prices.charged(graph.operators, options, mesh, zero)
    pairs: dict[tuple[int, int], FloatArray] = {}
    for source, reader, which in graph.edges():
        costs = _reshard_table(prices, graph, options, mesh, (source, reader, which))
        pairs[source, reader] = pairs.get((source, reader), 0.0) + costs
    return Problem(graph, mesh, options, charged, pairs)


def _reshard_table(
    prices: Prices,
    graph: Graph,
    options: Sequence[list[Strategy]],
    mesh: LogicalMesh,
    edge: tuple[int, int, int],
) -> FloatArray:
    source, reader, which = edge
    operator = graph.operators[reader]
    read = operator.reads[which]
    written = [s.writes for s in options[source]]
    wanted = [s.read_spec(operator, which) for s in options[reader]]
    rows, columns = list(dict.fromkeys(written)), list(dict.fromkeys(wanted))
    small = np.array([[prices.reshard_s(read, a, b, mesh) for b in columns] for a in rows])
    costs: FloatArray = small[np.ix_([rows.index(a) for a in written], [columns.index(b) for b in wanted])]
    return costs


def free_table(problem: Problem) -> FloatArray:
    """Returns the least time for every sharding of the residual stream in front and behind.

    The shape is ``(in front, behind)``; 1 where the graph has no such end.
    """
    graph = problem.graph
    ends = [v for v in (graph.entry, graph.exit) if v is not None]
    costs = problem.eliminated(ends).costs
    return costs.reshape(1 if graph.entry is None else len(costs), -1)


def strung(tables: Sequence[FloatArray]) -> float:
    """Returns the least time of a run of graphs, from their tables: both sides of every seam agree."""
    total = tables[0]
    for table in tables[1:]:
        total = (total[:, :, None] + table[None, :, :]).min(axis=1)
    return float(total.min())


BATCH_ROLE, TENSOR_ROLE, EXPERT_ROLE, WIDTH_ROLE, OWN_ROLE = "batch", "tensor", "expert", "width", "own"


@dataclass(frozen=True, slots=True)
class Roles:
    """What a stage configuration makes of each axis.

    Attributes:
        shape: Of the mesh.
        dense: Per axis, ``batch`` or ``tensor``.
        experts: Per axis, ``expert``, ``width`` or ``own`` (tokens stay where they are).
    """

    shape: tuple[int, int]
    dense: tuple[str, str]
    experts: tuple[str, str]

    @property
    def degrees(self) -> tuple[int, int, int, int]:
        """The degrees dp, tp, ep and expert tp."""
        return (
            self._size(self.dense, BATCH_ROLE),
            self._size(self.dense, TENSOR_ROLE),
            self._size(self.experts, EXPERT_ROLE),
            self._size(self.experts, WIDTH_ROLE),
        )

    def strategy(self, operator: Operator) -> Strategy:
        """Returns how an operator is split."""
        axes = [self._axis(operator, axis) for axis in range(2)]
        first, second = axes
        return Strategy(*((a, b) for a, b in zip(first, second, strict=True)))

    def _size(self, roles: tuple[str, str], role: str) -> int:
        return prod(size for own, size in zip(roles, self.shape, strict=True) if own == role)

    def _axis(self, operator: Operator, axis: int) -> tuple[str, str, str]:
        """Returns what one axis splits: of the operator, of its input, of its output."""
        if self.shape[axis] == 1:
            return NOTHING, NOTHING, NOTHING
        dense, expert = self.dense[axis], self.experts[axis]
        if operator.name in ("expert_up", "expert_down"):
            if expert == EXPERT_ROLE:
                return "e", "e", "e"
            if expert == WIDTH_ROLE:
                return ("f", SEQUENCE, "f") if operator.name == "expert_up" else ("f", "f", SEQUENCE)
        if dense == BATCH_ROLE:
            return "b", "b", "b"
        return _TENSOR.get(operator.name, (SEQUENCE, SEQUENCE, SEQUENCE))


_TENSOR = {
    "embedding": ("v", NOTHING, SEQUENCE),
    "qkv": ("n", SEQUENCE, "n"),
    "core": ("n", "n", "n"),
    "out": ("n", "n", SEQUENCE),
    "up": ("f", SEQUENCE, "f"),
    "down": ("f", "f", SEQUENCE),
    "shared_up": ("g", SEQUENCE, "g"),
    "shared_down": ("g", "g", SEQUENCE),
    "head": ("v", SEQUENCE, NOTHING),
}
"""What tensor parallelism with a split sequence does to each operator; the others keep their tokens."""


def roles_on(shape: tuple[int, int], *, moe: bool, ordered: bool = True) -> list[Roles]:
    """Returns the roles that a stage configuration may give the axes of a mesh, in a fixed order.

    Ranks of a configuration lie in the order (dp, tp), and those of the experts in the order (replicas, ep,
    expert tp): a role that belongs further out never stands on the second axis behind one further in. Where
    that is not asked for, the degrees are what is meant, and a configuration of these degrees is the nearest.
    """
    expert_roles = (OWN_ROLE, EXPERT_ROLE, WIDTH_ROLE) if moe else (OWN_ROLE,)
    denses = ((BATCH_ROLE, BATCH_ROLE), (BATCH_ROLE, TENSOR_ROLE), (TENSOR_ROLE, TENSOR_ROLE))
    return [
        Roles(shape, dense, (first, second))
        for dense in denses
        for first, second in product(expert_roles, repeat=2)
        if _is_sayable(shape, dense, (first, second), ordered)
    ]


def _is_sayable(
    shape: tuple[int, int], dense: tuple[str, str], experts: tuple[str, str], ordered: bool
) -> bool:
    if shape[1] == 1 and (experts[0] != experts[1] or dense[0] != dense[1]):
        return False
    widths = [role == WIDTH_ROLE for role in experts]
    tensors = [role == TENSOR_ROLE for role in dense]
    if any(widths) and widths != tensors:  # Expert tp is 1 or tp.
        return False
    order = (OWN_ROLE, EXPERT_ROLE, WIDTH_ROLE)
    return not ordered or order.index(experts[0]) <= order.index(experts[1])


def indivisible(graph: Graph, roles: Roles) -> bool:
    """Whether the roles split an index into parts that do not divide it."""
    for operator in graph.operators:
        strategy = roles.strategy(operator)
        for spec in (strategy.splits, strategy.reads, strategy.writes):
            if not _fits(spec, roles.shape, graph):
                return True
    return False


def _fits(spec: Spec, shape: tuple[int, int], graph: Graph) -> bool:
    parts: dict[str, int] = {}
    for index, size in zip(spec, shape, strict=True):
        if index:
            parts[index] = parts.get(index, 1) * size
    return all(graph.sizes[index] % part == 0 for index, part in parts.items())


@dataclass(frozen=True, slots=True)
class Expressed:
    """What an expressible assignment costs.

    Attributes:
        roles: Of the axes.
        seconds, state_bytes, stored_bytes: Sums over the operators, resharding included.
    """

    roles: Roles
    seconds: float
    state_bytes: float
    stored_bytes: float


def expressed(
    prices: Prices, parts: Sequence[AtomPart], mesh: LogicalMesh, roles: Sequence[Roles], zero: int
) -> list[Expressed]:
    """Returns what a run of parts costs under each of some roles."""
    problem = problem_of(prices, parts, mesh, zero, roles)
    found = []
    for role in roles:
        values = [
            options.index(role.strategy(op))
            for op, options in zip(problem.graph.operators, problem.strategies, strict=True)
        ]
        held = [
            (float(c.state_bytes[v]), float(c.stored_bytes[v]))
            for c, v in zip(problem.charged, values, strict=True)
        ]
        seconds = problem.seconds(values)
        found.append(Expressed(role, seconds, sum(a for a, _ in held), sum(b for _, b in held)))
    return found
