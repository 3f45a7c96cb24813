"""How an operator may be split over a mesh: its sharding strategies.

Each axis of the mesh splits one index of the operator, or none. One rule covers every einsum and its backward
pass. For an axis that splits index ``i`` of ``x, w -> y``:

* ``i`` not in ``y``: the partial outputs are summed in the forward pass, by an all-reduce that leaves the
  output whole on the axis, or by a reduce-scatter that leaves it split along the sequence;
* ``i`` not in ``x``: likewise the gradient of ``x`` in the backward pass. ``x`` is then needed whole on the
  axis: it is read so, or split along the sequence and gathered by the operator itself, whose backward pass
  scatters;
* ``i`` not in ``w``: the axis holds replicas of the weight, whose gradients are summed once per step.

Where an axis splits nothing the work is repeated on it. Both axes may split the same index. Data, tensor,
sequence and expert parallelism, and their mixtures, are what comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from tangram.parallelizers.alpa.einsums import Operator

NOTHING = ""
SEQUENCE = "s"

Spec = tuple[str, str]
"""Per axis of the mesh, the index of a tensor that it splits; empty where it splits none."""

_AxisChoice = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Strategy:
    """What the axes of a mesh split.

    Attributes:
        splits: Of the operator.
        reads: Of its first input, as it arrives.
        writes: Of its output, as it leaves.
    """

    splits: Spec
    reads: Spec
    writes: Spec

    def read_spec(self, operator: Operator, which: int) -> Spec:
        """Returns what the axes have to split of an input."""
        if which == 0:
            return self.reads
        indices = operator.reads[which].indices
        first, second = (i if i in indices else NOTHING for i in self.splits)
        return first, second


def strategies_of(operator: Operator, shape: tuple[int, int], sizes: Mapping[str, int]) -> list[Strategy]:
    """Returns the strategies of an operator, in a fixed order.

    Args:
        operator: The operator.
        shape: Of the mesh.
        sizes: Of the indices; what does not divide them is left out.
    """
    choices = [axis_choices(operator) if size > 1 else [(NOTHING,) * 3] for size in shape]
    found = []
    for first, second in product(*choices):
        strategy = Strategy(*((a, b) for a, b in zip(first, second, strict=True)))
        specs = (strategy.splits, strategy.reads, strategy.writes)
        if all(_divides(spec, shape, sizes) for spec in specs):
            found.append(strategy)
    return found


def axis_choices(operator: Operator) -> list[_AxisChoice]:
    """Returns what one axis may do: (index split, index of the input as read, of the output as written)."""
    source, made = operator.reads[0].indices if operator.reads else operator.writes, operator.writes
    found: list[_AxisChoice] = [(NOTHING, NOTHING, NOTHING)]
    for index in operator.splits:
        # Token numbers have no gradient to sum, and nobody in front whose output would have to be gathered.
        gathered = SEQUENCE in source and "h" in source
        reads = [index] if index in source else [NOTHING, SEQUENCE] if gathered else [NOTHING]
        scattered = SEQUENCE in made and "h" in made
        writes = [index] if index in made else [NOTHING, SEQUENCE] if scattered else [NOTHING]
        found += [(index, read, write) for read in reads for write in writes]
    return found


def _divides(spec: Spec, shape: tuple[int, int], sizes: Mapping[str, int]) -> bool:
    parts: dict[str, int] = {}
    for index, size in zip(spec, shape, strict=True):
        if index:
            parts[index] = parts.get(index, 1) * size
    return all(sizes[index] % part == 0 for index, part in parts.items())
