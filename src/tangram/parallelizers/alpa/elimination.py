"""Exact minimisation of a sum of tables over discrete variables, by variable elimination.

The einsums of a layer form a chain with two detours, the residual streams, so eliminating one variable after
the other (adding up all tables that hold it, and keeping the minimum over it) never makes a table of more
than a few variables: the cost is that of the graph's tree width. What an integer linear programme is needed
for elsewhere is then a handful of array operations. Tests compare it with the programme.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tangram.cost.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """Costs over some variables, ascending; one axis each."""

    variables: tuple[int, ...]
    costs: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """An eliminated variable: its best value for every combination of the variables beside it."""

    variable: int
    beside: tuple[int, ...]
    best: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Eliminated:
    """What is left when all variables but the kept ones are eliminated.

    Attributes:
        kept: The variables that are left, ascending.
        costs: The least cost for every combination of them; a scalar array when there are none.
    """

    kept: tuple[int, ...]
    costs: FloatArray
    steps: tuple[_Step, ...]

    def assignment(self, values: Sequence[int] = ()) -> list[int]:
        """Returns the best value of every variable, given those of the kept ones; ties go to the first."""
        chosen = dict(zip(self.kept, values, strict=True))
        for step in reversed(self.steps):
            chosen[step.variable] = int(step.best[tuple(chosen[v] for v in step.beside)])
        return [chosen[v] for v in sorted(chosen)]


def eliminate(
    unary: Sequence[FloatArray], pairs: Mapping[tuple[int, int], FloatArray], keep: Sequence[int] = ()
) -> Eliminated:
    """Minimises over all variables but those to keep.

    Args:
        unary: Costs of the values of each variable.
        pairs: Costs of pairs of values, by the two variables, the smaller one first.
        keep: Variables to keep.
    """
    tables = [_Table((v,), costs) for v, costs in enumerate(unary)]
    tables += [_Table(scope, costs) for scope, costs in sorted(pairs.items(), key=lambda item: item[0])]
    rest = [v for v in range(len(unary)) if v not in keep]
    sizes = [len(costs) for costs in unary]
    steps: list[_Step] = []
    while rest:
        variable = min(rest, key=lambda v: (_width(tables, v, sizes), v))
        rest.remove(variable)
        touched = [t for t in tables if variable in t.variables]
        joined = _sum(touched)
        axis = joined.variables.index(variable)
        beside = joined.variables[:axis] + joined.variables[axis + 1 :]
        steps.append(_Step(variable, beside, joined.costs.argmin(axis=axis)))
        tables = [t for t in tables if variable not in t.variables]
        tables.append(_Table(beside, joined.costs.min(axis=axis)))
    left = _sum(tables)
    return Eliminated(left.variables, left.costs, tuple(steps))


def _width(tables: Sequence[_Table], variable: int, sizes: Sequence[int]) -> int:
    """Entries of the table that eliminating a variable needs."""
    scope = {v for t in tables if variable in t.variables for v in t.variables}
    entries = 1
    for v in scope:
        entries *= sizes[v]
    return entries


def _sum(tables: Sequence[_Table]) -> _Table:
    """Adds tables up over the union of their variables."""
    variables = tuple(sorted({v for t in tables for v in t.variables}))
    total: FloatArray = np.zeros(())
    for table in tables:
        shape = [
            table.costs.shape[table.variables.index(v)] if v in table.variables else 1 for v in variables
        ]
        total = total + table.costs.reshape(shape)
    return _Table(variables, total)
