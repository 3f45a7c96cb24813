"""What a store holds, in groups: which shapes and links were measured, over which ranges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tangram.job import Precision
from tangram.profiles.peers import profiled_gpu
from tangram.profiles.records import CollectiveTime, LayerTime, LinkRate, Op, Scope
from tangram.profiles.shapes import LayerShape
from tangram.profiles.store import Profiles


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Records of one shape on one GPU in one stack and precision.

    Attributes:
        gpu, stack, precision, shape: What they share.
        tp: Degrees, ascending.
        includes_tp_comm: Of those with tp > 1, whether their times hold the collectives: one answer, or both.
        micro_batch: Micro-batches, ascending.
        measures: Names of the figures that any of them gives, in the order of the record.
        num_records: How many.
    """

    gpu: str
    stack: str
    precision: Precision
    shape: LayerShape
    tp: tuple[int, ...]
    includes_tp_comm: tuple[bool, ...]
    micro_batch: tuple[int, ...]
    measures: tuple[str, ...]
    num_records: int


@dataclass(frozen=True, slots=True)
class LinkGroup:
    """Collectives and rates of one kind on one GPU.

    Attributes:
        gpu, stack, link, scope, op: What they share.
        ranks: Sizes of groups, ascending.
        num_bytes: Smallest and largest message; None for rates, which do not say.
        bus_bytes_per_s: Lowest and highest bus bandwidth.
        num_records: How many.
    """

    gpu: str
    stack: str
    link: str
    scope: Scope
    op: Op
    ranks: tuple[int, ...]
    num_bytes: tuple[int, int] | None
    bus_bytes_per_s: tuple[float, float]
    num_records: int


def of_gpu(profiles: Profiles, name: str | None) -> Profiles:
    """Returns the records of one GPU, or all when ``name`` is None.

    Raises:
        InputError: The name leaves open which variant is meant.
    """
    if name is None:
        return profiles
    gpu = profiled_gpu(name)
    return Profiles(
        tuple(record for record in profiles.layers if record.gpu == gpu),
        tuple(record for record in profiles.collectives if record.gpu == gpu),
        tuple(record for record in profiles.rates if record.gpu == gpu),
    )


def layer_groups(records: Iterable[LayerTime]) -> list[LayerGroup]:
    """Groups layer records, in the order in which they first appear."""
    groups: dict[tuple[str, str, Precision, LayerShape], list[LayerTime]] = {}
    for record in records:
        key = (record.gpu, record.stack, record.precision, record.shape)
        groups.setdefault(key, []).append(record)
    return [
        LayerGroup(
            *key,
            tp=tuple(sorted({record.tp for record in found})),
            includes_tp_comm=tuple(sorted({record.includes_tp_comm for record in found if record.tp > 1})),
            micro_batch=tuple(sorted({record.micro_batch for record in found})),
            measures=tuple(
                name
                for name in LayerTime.TIMES + LayerTime.SIZES
                if any(getattr(record, name) is not None for record in found)
            ),
            num_records=len(found),
        )
        for key, found in groups.items()
    ]


def link_groups(records: Iterable[CollectiveTime | LinkRate]) -> list[LinkGroup]:
    """Groups collectives and rates, in the order in which they first appear."""
    groups: dict[tuple[bool, str, str, str, Scope, Op], list[CollectiveTime | LinkRate]] = {}
    for record in records:
        is_time = isinstance(record, CollectiveTime)
        key = (is_time, record.gpu, record.stack, record.link, record.scope, record.op)
        groups.setdefault(key, []).append(record)
    return [_link_group(found) for found in groups.values()]


def _link_group(found: list[CollectiveTime | LinkRate]) -> LinkGroup:
    first = found[0]
    sizes = [record.num_bytes for record in found if isinstance(record, CollectiveTime)]
    rates = [record.bus_bytes_per_s for record in found]
    return LinkGroup(
        first.gpu,
        first.stack,
        first.link,
        first.scope,
        first.op,
        ranks=tuple(sorted({record.ranks for record in found})),
        num_bytes=(min(sizes), max(sizes)) if sizes else None,
        bus_bytes_per_s=(min(rates), max(rates)),
        num_records=len(found),
    )
