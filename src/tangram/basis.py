"""What predictions rest on: shelves of constants, what a user put in their place, and what was measured.

A basis is a value. It travels with the job (:class:`tangram.job.Job`) to everything that predicts, into
worker processes and into the plan document, so that equal jobs are predicted equally wherever that happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from tangram.errors import InputError

DEFAULT_STACK = "tangram-runtime"
DEFAULT_CLUSTER = "default"

PLAIN_FORMULA = "formula"
"""``MeasuredFactor.basis`` where nothing measured says anything of the formula; its factors are 1."""


class Override(NamedTuple):
    """A constant of the cost model that takes the place of the shipped one.

    Attributes:
        shelf: ``gpu_family``, ``stack`` or ``cluster``.
        owner: Name of the GPU family, stack or cluster.
        constant: Name of the constant.
        value: In the constant's unit.
    """

    shelf: str
    owner: str
    constant: str
    value: float


class FactorKey(NamedTuple):
    """Which formula a factor multiplies.

    Attributes:
        atom: Fingerprint of the atom.
        island: Name of the island: its GPUs and the links of its nodes.
        tp: Tensor-parallel degree.
        samples: Of the micro-batch on one rank.
    """

    atom: str
    island: str
    tp: int
    samples: int


@dataclass(frozen=True, slots=True)
class MeasuredFactor:
    """What the time of an atom by formula is multiplied by, to agree with measurements.

    Attributes:
        key: Of what.
        forward, backward: Factors of the two passes; backward without recomputation.
        includes_tp_comm: Whether they hold for compute and tensor-parallel collectives inside a node
            together, or for compute alone.
        basis: ``measured``, ``interpolated``, ``scaled formula`` or ``formula``.
    """

    key: FactorKey
    forward: float
    backward: float
    includes_tp_comm: bool
    basis: str


_Least = dict[int, tuple[float, float]]
"""Per number of samples on a rank, the least factors over all tp."""


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """Factors from measured layers, for jobs of one precision and sequence length.

    Attributes:
        precision, seq_len: Of these jobs; for all others the table says nothing.
        factors: At most one per key.
        is_whole: Whether all micro-batches, and all tp inside a node, that a planner may try are in it. What
            is not in it rests on formulas, with factors of 1.
    """

    precision: str = ""
    seq_len: int = 0
    factors: tuple[MeasuredFactor, ...] = ()
    is_whole: bool = False
    _by_key: Mapping[FactorKey, MeasuredFactor] = field(init=False, repr=False, compare=False)
    _least: Mapping[tuple[str, str], _Least] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len({factor.key for factor in self.factors}) < len(self.factors):
            raise InputError("two measured factors have one key", where="basis", hint="remove one of them")
        least: dict[tuple[str, str], _Least] = {}
        for factor in self.factors:
            by_samples = least.setdefault((factor.key.atom, factor.key.island), {})
            forward, backward = by_samples.get(factor.key.samples, (factor.forward, factor.backward))
            by_samples[factor.key.samples] = min(forward, factor.forward), min(backward, factor.backward)
        object.__setattr__(self, "_by_key", MappingProxyType({f.key: f for f in self.factors}))
        object.__setattr__(self, "_least", MappingProxyType(least))

    def __bool__(self) -> bool:
        return bool(self.factors)

    def __reduce__(self) -> tuple[object, ...]:
        return MeasuredTable, (self.precision, self.seq_len, self.factors, self.is_whole)

    def find(self, key: FactorKey) -> MeasuredFactor | None:
        """Returns the factor of a key, or None."""
        return self._by_key.get(key)

    def least(self, atom: str, island: str, micro_batch: int) -> tuple[float, float]:
        """Returns the least factors of an atom on an island, forward and backward, with any tp inside a
        node: what a bound may count on.

        Args:
            atom: Fingerprint.
            island: Name.
            micro_batch: Global micro-batch; a rank has a divisor of it.
        """
        by_samples = self._least.get((atom, island), {})
        found = [both for samples, both in by_samples.items() if micro_batch % samples == 0]
        if not found or not self.is_whole:
            found.append((1.0, 1.0))
        return min(forward for forward, _ in found), min(backward for _, backward in found)


@dataclass(frozen=True, slots=True)
class CostBasis:
    """What predictions rest on; the default is what Tangram ships.

    Attributes:
        stack: Software stack whose constants count.
        cluster: Shelf of constants of the links.
        overrides: Constants of the user, at most one per shelf, owner and name; kept sorted.
        measured: Factors from measured layers.
        memory_margin_frac: What is added to the best estimate of memory beside model states before a peak has
            to fit, as a share of it, 0 to 1; None leaves that to the stack's constants.

    Raises:
        InputError: The margin is out of range, or one constant has two values.
    """

    stack: str = DEFAULT_STACK
    cluster: str = DEFAULT_CLUSTER
    overrides: tuple[Override, ...] = ()
    measured: MeasuredTable = field(default_factory=MeasuredTable)
    memory_margin_frac: float | None = None

    def __post_init__(self) -> None:
        margin = self.memory_margin_frac
        if margin is not None and not 0 <= margin <= 1:
            raise InputError(
                f"memory margin {margin:g} is out of range",
                where="--memory-margin",
                hint="legal: 0 to 1, a share of all that is predicted beside model states",
            )
        ordered = tuple(sorted(self.overrides))
        for one, other in pairwise(ordered):
            if one[:3] == other[:3]:
                place = f"{one.shelf}.{one.owner}.{one.constant}"
                raise InputError("has two values", where=place, hint="remove one of them")
        object.__setattr__(self, "overrides", ordered)

    @property
    def has_shipped_constants(self) -> bool:
        """Whether all constants are those that Tangram ships for its own runtime."""
        return (self.stack, self.cluster, self.overrides) == (DEFAULT_STACK, DEFAULT_CLUSTER, ())

    @property
    def is_default(self) -> bool:
        """Whether it is what Tangram ships."""
        default_margin = self.memory_margin_frac is None
        return self.has_shipped_constants and default_margin and not self.measured


SHIPPED_BASIS = CostBasis()
"""What Tangram ships, for its own runtime on a cluster that nobody calibrated."""
