"""What a profile says: measured times of layers and of collectives, each with where it comes from.

Everything in a record was measured (or is a sum of things measured); what was not is None, never a formula.
Times are seconds, sizes bytes, all per GPU (one rank).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from tangram.errors import InputError
from tangram.job import Precision
from tangram.model.fields import describe
from tangram.profiles.shapes import LayerShape


class Scope(StrEnum):
    """Which links a group of ranks talks over."""

    INTRA_NODE = "intra-node"
    INTER_NODE = "inter-node"


class Op(StrEnum):
    """A collective, or a point-to-point message."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND = "send"

    def bus_ratio(self, ranks: int) -> float:
        """Bytes that cross a rank's link per byte of the message, at best.

        nccl-tests' bus bandwidth is ``num_bytes * bus_ratio / seconds`` (its doc/PERFORMANCE.md).
        """
        if self is Op.SEND:
            return 1.0
        return (2 if self is Op.ALL_REDUCE else 1) * (ranks - 1) / ranks


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One layer (or part, or end of the model), timed on one rank.

    The key is ``gpu, stack, precision, shape, tp, micro_batch, includes_tp_comm``; at least one figure of the
    rest is given. Experts are all on the rank (ep = 1); sequences are whole (cp = 1).

    Attributes:
        gpu: Name of the part, as in the catalogue where it is there.
        stack: Software that ran, for example ``tangram-runtime``, ``aceso``, ``sailor``.
        precision: Arithmetic of the matrix products.
        shape: What ran, unsharded.
        tp: Tensor-parallel degree: the rank ran 1/tp of the shape.
        micro_batch: Samples on the rank (the global micro-batch divided by dp).
        includes_tp_comm: Whether times hold the rank's tensor-parallel collectives, inside one node. Always
            false for tp = 1.
        forward_s, backward_s: One micro-batch; backward without recomputation.
        forward_backward_s: Their sum, where a source gives only that.
        recompute_s: Running the forward pass again in backward, when all of it is recomputed.
        optimizer_s: Updating this piece's parameters once per step.
        activation_bytes: Kept for backward, per micro-batch.
        workspace_bytes: Largest transient beyond what is kept.
        source: Tool, file and date or version, in words.
        TIMES, SIZES: Names of the fields that hold figures.
    """

    TIMES: ClassVar[tuple[str, ...]] = (
        "forward_s",
        "backward_s",
        "forward_backward_s",
        "recompute_s",
        "optimizer_s",
    )
    SIZES: ClassVar[tuple[str, ...]] = ("activation_bytes", "workspace_bytes")

    gpu: str
    stack: str
    precision: Precision
    shape: LayerShape
    tp: int
    micro_batch: int
    includes_tp_comm: bool
    forward_s: float | None
    backward_s: float | None
    source: str
    forward_backward_s: float | None = None
    recompute_s: float | None = None
    optimizer_s: float | None = None
    activation_bytes: int | None = None
    workspace_bytes: int | None = None

    def __post_init__(self) -> None:
        _named(self, "gpu", "stack", "source")
        _positive(self, "tp", "micro_batch")
        _measured(self, self.TIMES, allow_zero=False)
        _measured(self, self.SIZES, allow_zero=True)
        if all(getattr(self, name) is None for name in self.TIMES + self.SIZES):
            raise InputError(f"a record of {self.shape} has no figure", hint="give a time or a size")
        if self.tp == 1 and self.includes_tp_comm:
            raise InputError("tp 1 has no collectives to include", where="includes_tp_comm", hint="false")
        if self.forward_backward_s is not None and (self.forward_s, self.backward_s) != (None, None):
            raise InputError(
                "a pass is given, and the sum of both", where="forward_backward_s", hint="give both passes"
            )

    @property
    def total_s(self) -> float | None:
        """Forward plus backward, or None where neither both nor their sum were measured."""
        if self.forward_s is not None and self.backward_s is not None:
            return self.forward_s + self.backward_s
        return self.forward_backward_s


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """One collective or message, timed.

    The key is all but ``seconds`` and ``source``.

    ``num_bytes`` follows nccl-tests' ``size`` column: the larger of the two buffers that one rank holds. That
    is, for all-reduce the buffer; for all-gather the *gathered* result; for reduce-scatter the *unscattered*
    input; for all-to-all all that a rank sends, its own share included; for send the message.

    Attributes:
        gpu: Name of the part, as in the catalogue where it is there.
        stack: Library and version in words, for example ``nccl`` or ``gloo``.
        link: What joins the ranks, in words (``nvlink``, ``pcie``, ``ib-200g``); empty when not known.
        scope: Inside one node, or across nodes.
        op: The collective.
        ranks: In the group; for send 2, or more where each rank sends to the next one at the same time.
        ranks_per_node: Of the group on each node; equals ``ranks`` inside a node.
        num_bytes: See above.
        seconds: Of one call.
        source: Tool, file and date or version, in words.
    """

    gpu: str
    stack: str
    link: str
    scope: Scope
    op: Op
    ranks: int
    ranks_per_node: int
    num_bytes: int
    seconds: float
    source: str

    def __post_init__(self) -> None:
        _named(self, "gpu", "stack", "source")
        _positive(self, "ranks", "ranks_per_node")
        _group(self)
        _measured(self, ("seconds",), allow_zero=False)
        _measured(self, ("num_bytes",), allow_zero=True)

    @property
    def bus_bytes_per_s(self) -> float:
        """Bus bandwidth as nccl-tests defines it."""
        return self.num_bytes * self.op.bus_ratio(self.ranks) / self.seconds


@dataclass(frozen=True, slots=True)
class LinkRate:
    """A bandwidth that was measured without a word on the size of the message.

    The key is all but ``bus_bytes_per_s`` and ``source``. It says nothing about latency, so it is no
    :class:`CollectiveTime`.

    Attributes:
        gpu, stack, link, scope, op, ranks, ranks_per_node, source: As in :class:`CollectiveTime`.
        bus_bytes_per_s: Bus bandwidth as nccl-tests defines it (see :meth:`Op.bus_ratio`).
    """

    gpu: str
    stack: str
    link: str
    scope: Scope
    op: Op
    ranks: int
    ranks_per_node: int
    bus_bytes_per_s: float
    source: str

    def __post_init__(self) -> None:
        _named(self, "gpu", "stack", "source")
        _positive(self, "ranks", "ranks_per_node")
        _group(self)
        _measured(self, ("bus_bytes_per_s",), allow_zero=False)


Record = LayerTime | CollectiveTime | LinkRate


_MOST = 10**15
"""No time, size, rate or count of one GPU is near; all of them fit SQLite's 64 bits."""


def _named(record: object, *names: str) -> None:
    for name in names:
        if not str(getattr(record, name)).strip():
            raise InputError("is empty", where=name, hint="give a name")


def _positive(record: object, *names: str) -> None:
    for name in names:
        value = getattr(record, name)
        if not 1 <= value <= _MOST:
            raise InputError(f"{describe(value)} is out of range", where=name, hint=f"legal: 1 to {_MOST:g}")


def _measured(record: object, names: tuple[str, ...], *, allow_zero: bool) -> None:
    """Refuses what cannot have been measured."""
    for name in names:
        value = getattr(record, name)
        if value is None:
            continue
        if not 0 <= value <= _MOST or (value == 0 and not allow_zero):
            legal = "0 or more" if allow_zero else "above zero"
            raise InputError(
                f"{describe(value)} was not measured", where=name, hint=f"legal: {legal}, below {_MOST:g}"
            )


def _group(record: CollectiveTime | LinkRate) -> None:
    if record.ranks < 2:
        raise InputError(f"{record.ranks} rank has nobody to talk to", where="ranks", hint="legal: 2 or more")
    inside = record.ranks_per_node == record.ranks
    if inside is not (record.scope is Scope.INTRA_NODE) or record.ranks % record.ranks_per_node:
        raise InputError(
            f"{record.ranks_per_node} of {record.ranks} ranks per node do not fit the scope "
            f"{record.scope.value}",
            where="ranks_per_node",
            hint="inside a node all of them; across nodes a smaller divisor",
        )
