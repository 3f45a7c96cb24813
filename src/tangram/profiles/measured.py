"""Measured layers in memory: by GPU and precision, and the nearest ones to any other layer.

Distances are Euclidean in binary logarithms: one unit is a factor of two in tp, tokens, sequence length or a
size; tp = 1 and more are one unit further apart. Two kinds of piece (a layer and its attention, say) are two
units apart; then only the sizes that both have are compared. The ends of a model are comparable with their
own kind only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tangram.basis import DEFAULT_STACK
from tangram.errors import InputError
from tangram.job import Precision
from tangram.profiles.keys import key_of
from tangram.profiles.records import LayerTime
from tangram.profiles.shapes import LayerKind, LayerShape

_ENDS = (LayerKind.EMBEDDING, LayerKind.FINAL_NORM, LayerKind.HEAD, LayerKind.EXPERT)
_OTHER_KIND = 2.0  # distance between a layer and a piece of one, in factors of two
_KINDS = list(LayerKind)


class LayerQuery(NamedTuple):
    """What is asked for; see :class:`tangram.profiles.records.LayerTime`.

    Attributes:
        gpu: Name of the part.
        precision: Arithmetic of the matrix products.
        shape: Unsharded.
        tp: Tensor-parallel degree, inside one node.
        micro_batch: Samples on the rank: the global micro-batch divided by dp.
    """

    gpu: str
    precision: Precision
    shape: LayerShape
    tp: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class Table:
    """Measurements of one GPU, precision and stack, sorted by key.

    Attributes:
        records: Those with a time.
        features: Shape ``(num_records, num_features)``: coordinates for distances.
        series: Of one shape, tp and kind of time: the measured micro-batches, ascending.
    """

    records: tuple[LayerTime, ...]
    features: npt.NDArray[np.float64]
    series: Mapping[tuple[LayerShape, int, bool], tuple[LayerTime, ...]]


@dataclass(frozen=True, slots=True)
class MeasuredLayers:
    """Measured layers by GPU and precision, ready for lookups; build it with :meth:`of`."""

    tables: Mapping[tuple[str, Precision], Table]

    @staticmethod
    def of(records: Iterable[LayerTime], stack: str | None = None) -> MeasuredLayers:
        """Sorts records into tables; the order in which they come does not matter.

        Args:
            records: At most one per key.
            stack: Whose measurements count. By default, per GPU and precision, those of Tangram's own
                runtime, or of the only stack there is.

        Raises:
            InputError: A GPU was measured with several stacks, none of them Tangram's, and none is given.
        """
        groups: dict[tuple[str, Precision], dict[str, list[LayerTime]]] = {}
        for record in sorted(records, key=key_of):
            if _has_pass(record):
                by_stack = groups.setdefault((record.gpu, record.precision), {})
                by_stack.setdefault(record.stack, []).append(record)
        tables = {}
        for (gpu, precision), by_stack in groups.items():
            chosen = _chosen(by_stack, stack, f"{gpu}, {precision.value}")
            if chosen is not None:
                tables[gpu, precision] = _table_of(by_stack[chosen])
        return MeasuredLayers(MappingProxyType(tables))

    def __len__(self) -> int:
        return sum(len(table.records) for table in self.tables.values())


def nearest(table: Table, query: LayerQuery) -> Iterator[tuple[float, LayerTime]]:
    """Yields comparable measurements with their distance, the nearest first; ties by key."""
    point = np.array(_features(query.shape, query.tp, query.micro_batch))
    distances = np.sqrt(np.nansum((table.features - point) ** 2, axis=1))
    kind = query.shape.kind
    is_end = kind in _ENDS
    for idx in np.argsort(distances, kind="stable").tolist():
        other = table.records[idx].shape.kind
        if other is kind or not (is_end or other in _ENDS):
            yield float(distances[idx]), table.records[idx]


def _features(shape: LayerShape, tp: int, micro_batch: int) -> list[float]:
    """Coordinates of a point; not a number where the kind has no such size."""
    tokens = micro_batch * shape.seq_len
    always = (tp, tokens, shape.seq_len, shape.hidden_size, max(shape.num_experts, 1), max(shape.top_k, 1))
    sometimes = (
        shape.num_heads * shape.head_dim,
        shape.num_kv_heads * shape.head_dim,
        shape.intermediate_size,
        shape.vocab_size,
        shape.shared_size,
        shape.kv_rank,
    )
    sizes = [math.log2(size) for size in always]
    sizes += [math.log2(size) if size else math.nan for size in sometimes]
    # Two kinds are _OTHER_KIND apart, whichever they are: a corner of a simplex for each.
    corner = [0.0] * len(_KINDS)
    corner[_KINDS.index(shape.kind)] = _OTHER_KIND / math.sqrt(2)
    # From one rank to two, collectives begin: that counts like one more factor of two. So do a gate, shared
    # experts and latent attention.
    flags = (tp > 1, shape.gated, shape.shared_size > 0, shape.kv_rank > 0)
    return [*sizes, *map(float, flags), *corner]


def _table_of(records: Sequence[LayerTime]) -> Table:
    features = np.array([_features(r.shape, r.tp, r.micro_batch) for r in records])
    series: dict[tuple[LayerShape, int, bool], list[LayerTime]] = {}
    for record in records:
        series.setdefault((record.shape, record.tp, record.includes_tp_comm), []).append(record)
    return Table(tuple(records), features, {key: tuple(found) for key, found in series.items()})


def _chosen(by_stack: Mapping[str, object], stack: str | None, where: str) -> str | None:
    if stack is not None:
        return stack if stack in by_stack else None
    if len(by_stack) == 1:
        return next(iter(by_stack))
    if DEFAULT_STACK in by_stack:
        return DEFAULT_STACK
    raise InputError(
        f"profiles of {len(by_stack)} stacks, and none is chosen",
        where=where,
        hint="choose one: " + ", ".join(sorted(by_stack)),
    )


def _has_pass(record: LayerTime) -> bool:
    return any(t is not None for t in (record.forward_s, record.backward_s, record.forward_backward_s))
