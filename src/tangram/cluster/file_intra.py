"""The link inside a node, as a cluster file gives it.

    intra: nvlink                        # all GPUs are joined: nvlink, xgmi, pcie, pcie-host or a bandwidth
    intra: nvlink-pairs                  # bridges over GPUs 0-1, 2-3 ..., PCIe between the pairs
    intra: {link: pcie, latency: 8us, bridge: nvlink, groups: [[0, 2], [1, 3]]}
    intra: {matrix: [[-, 52, 12, 12], ...], unit: GB/s}       # what a bandwidth test prints

``pcie-host`` is PCIe through host memory: what cards without peer access (GeForce) do in any case.

A matrix is taken for one rate between any two GPUs, its slowest, and for one bridge: the fastest division
into equal groups of 2, 4, 8 ..., if these are at least half as fast again. What else it shows, such as a
second level, is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tangram.cluster import defaults
from tangram.cluster.defaults import IntraLink
from tangram.cluster.file_matrix import Matrix, read_matrix
from tangram.cluster.spec import Bridge, GpuSpec
from tangram.errors import InputError
from tangram.yaml_reader import Kind, Value, shorten

_LINK_KINDS = ("nvlink", "xgmi", "pcie", defaults.THROUGH_HOST)
_BRIDGE_KINDS = ("nvlink", "xgmi")
_PAIRS = "-pairs"
_LEGAL = "nvlink, nvlink-pairs, xgmi, pcie, pcie-host or a bandwidth such as 300GB/s"
_LEAST_BRIDGE_RATIO = 1.5


@dataclass(frozen=True, slots=True)
class Inside:
    """How the GPUs of a node talk.

    Attributes:
        link: Between any two of them.
        bridge: Joins groups of them; None without.
        note: What was made of the file's words, for print; None where they say it all.
    """

    link: IntraLink
    bridge: Bridge | None = None
    note: str | None = None


def default_inside(part: GpuSpec) -> Inside:
    """Returns the link of a node whose file is silent about it."""
    return Inside(defaults.default_intra(part))


def read_inside(value: Value, part: GpuSpec, num_gpus: int) -> Inside:
    """Reads the field ``intra``.

    Raises:
        InputError: An unknown or impossible link, groups that are none, or a matrix of another size.
        UnknownNameError: An unknown key.
    """
    if value.kind is not Kind.MAPPING:
        return _named(value, part, num_gpus)
    fields = value.mapping(optional=("link", "latency", "bridge", "groups", "matrix", "unit"))
    if "matrix" in fields:
        return _measured(value, part, num_gpus)
    if "link" not in fields:
        raise InputError("the key 'link' is missing", where=value.where, hint="or give a matrix")
    if "unit" in fields:
        raise InputError("a unit without a matrix", where=fields["unit"].where, hint="leave it out")
    found = _named(fields["link"], part, num_gpus)
    if "bridge" in fields:
        if found.bridge is not None:
            raise InputError("two bridges", where=fields["bridge"].where, hint="write link: pcie")
        link = _bridge_link(fields["bridge"], part)
        groups = _groups(fields.get("groups"), num_gpus, fields["bridge"])
        found = Inside(found.link, _bridge(link, groups), found.note)
    elif "groups" in fields:
        raise InputError("groups without a bridge", where=fields["groups"].where, hint="add bridge: nvlink")
    if "latency" not in fields:
        return found
    text = fields["latency"].text("a duration such as 3us")
    latency_s = defaults.latency(text, where=fields["latency"].where)
    link = IntraLink(found.link.kind, found.link.bandwidth_bytes_per_s, latency_s)
    return Inside(link, found.bridge, found.note)


def _named(value: Value, part: GpuSpec, num_gpus: int) -> Inside:
    text = value.text(_LEGAL)
    word = text.lower()
    if word.removesuffix(_PAIRS) in _BRIDGE_KINDS and word.endswith(_PAIRS):
        link = defaults.named_bridge(word.removesuffix(_PAIRS), part, where=value.where)
        groups = _groups(None, num_gpus, value)
        return Inside(defaults.pcie(part), _bridge(link, groups), _host_note(defaults.pcie(part), part))
    if word in _LINK_KINDS:
        named = defaults.named_intra(word, part, num_gpus, where=value.where)
        return Inside(named, None, _host_note(named, part) if word == "pcie" else None)
    if not text[0].isdigit():
        raise InputError(f"unknown link {shorten(text)!r}", where=value.where, hint=f"legal: {_LEGAL}")
    return Inside(_stated(defaults.bandwidth(text, where=value.where), part))


def _host_note(link: IntraLink, part: GpuSpec) -> str | None:
    """What is said where a user writes PCIe, and the cards cannot use it directly."""
    if link.kind != defaults.THROUGH_HOST:
        return None
    return f"{part.name} has no peer access over PCIe; state a bandwidth if yours have it"


def _stated(rate: float, part: GpuSpec) -> IntraLink:
    """A link as fast as PCIe behaves like it; the name only serves print and the latency."""
    kind = "pcie" if rate <= part.pcie_bytes_per_s else "link"
    return IntraLink(kind, rate, defaults.PCIE_LATENCY_S if kind == "pcie" else defaults.LINK_LATENCY_S)


def _bridge_link(value: Value, part: GpuSpec) -> IntraLink:
    text = value.text("nvlink, xgmi or a bandwidth such as 56GB/s")
    if text.lower() in _BRIDGE_KINDS:
        return defaults.named_bridge(text.lower(), part, where=value.where)
    if not text[0].isdigit():
        raise InputError(
            f"unknown bridge {shorten(text)!r}",
            where=value.where,
            hint="legal: nvlink, xgmi or a bandwidth such as 56GB/s",
        )
    return _bridge_of_rate(defaults.bandwidth(text, where=value.where), part)


def _bridge_of_rate(rate: float, part: GpuSpec) -> IntraLink:
    """Any link faster than PCIe between some GPUs is one of the part's own, where it has any."""
    kind = "nvlink" if part.link_bytes_per_s > 0 and part.vendor == "NVIDIA" else "link"
    return IntraLink(kind, rate, defaults.LINK_LATENCY_S)


def _bridge(link: IntraLink, groups: tuple[tuple[int, ...], ...]) -> Bridge:
    return Bridge(groups, link.kind, link.bandwidth_bytes_per_s, link.latency_s)


def _groups(value: Value | None, num_gpus: int, bridge: Value) -> tuple[tuple[int, ...], ...]:
    """Reads groups of GPUs; pairs in order where none are given."""
    if value is None:
        if num_gpus % 2:
            raise InputError(
                f"{num_gpus} GPUs are no pairs",
                where=bridge.where,
                hint="list those without a partner as an entry of their own, on the same host",
            )
        return tuple((gpu_idx, gpu_idx + 1) for gpu_idx in range(0, num_gpus, 2))
    groups = tuple(tuple(gpu.integer(0, num_gpus - 1) for gpu in group.items()) for group in value.items())
    joined = [gpu_idx for group in groups for gpu_idx in group]
    if sorted(joined) != list(range(num_gpus)) or len({len(group) for group in groups}) != 1:
        raise InputError(
            f"the groups do not divide GPUs 0 to {num_gpus - 1} into equal parts",
            where=value.where,
            hint="every GPU once, such as [[0, 1], [2, 3]]",
        )
    if not _is_bridge_size(len(groups[0])):
        raise InputError(
            f"groups of {len(groups[0])} GPUs",
            where=value.where,
            hint="a bridge joins 2, 4, 8 ...",
        )
    return groups


def _measured(value: Value, part: GpuSpec, num_gpus: int) -> Inside:
    fields = value.mapping(required=("matrix",), optional=("unit", "latency"))
    if num_gpus < 2:
        raise InputError("one GPU has no links inside its node", where=value.where, hint="leave 'intra' out")
    names = [f"GPU {gpu_idx}" for gpu_idx in range(num_gpus)]
    matrix = read_matrix(fields["matrix"], names, fields.get("unit"))
    slowest = min(rate for i, row in enumerate(matrix) for j, rate in enumerate(row) if i != j and rate)
    link = _stated(slowest, part)
    if "latency" in fields:
        text = fields["latency"].text("a duration such as 3us")
        link = IntraLink(
            link.kind, link.bandwidth_bytes_per_s, defaults.latency(text, where=fields["latency"].where)
        )
    found = fastest_groups(matrix)
    if found is None:
        return Inside(link)
    groups, rate = found
    return Inside(link, _bridge(_bridge_of_rate(rate, part), groups))


def fastest_groups(matrix: Matrix) -> tuple[tuple[tuple[int, ...], ...], float] | None:
    """Returns the fastest division into equal groups in which every pair is linked faster than the slowest
    pair of all by half as much again, and the slowest link within a group; None where there is none.

    Args:
        matrix: Symmetric, in bytes per second; the diagonal is not read.
    """
    size = len(matrix)
    edges = [rate for i, row in enumerate(matrix) for rate in row[:i] if rate]
    counts = Counter(edges)
    faster = 0
    for least in sorted(counts, reverse=True):
        if least < _LEAST_BRIDGE_RATIO * min(edges):
            return None
        faster += counts[least]
        # Groups of k GPUs have (k - 1) / 2 pairs for each GPU: other numbers of pairs need no closer look.
        others, rest = divmod(2 * faster, size)
        if not rest and others + 1 < size and size % (others + 1) == 0 and _is_bridge_size(others + 1):
            groups = _cliques(matrix, least)
            if groups is not None:
                return groups, least
    return None


def _is_bridge_size(size: int) -> bool:
    """Bridges join 2 or 4 boards; of powers of two, stages never begin in the middle of one."""
    return size > 1 and size & (size - 1) == 0


def _cliques(matrix: Matrix, least: float) -> tuple[tuple[int, ...], ...] | None:
    """Groups of equal size, linked at this rate within and not between; None where there are none."""
    neighbours = [
        tuple(j for j, rate in enumerate(row) if i == j or (rate is not None and rate >= least))
        for i, row in enumerate(matrix)
    ]
    groups = tuple(dict.fromkeys(neighbours))
    sizes: Sequence[int] = [len(group) for group in groups]
    if sum(sizes) != len(matrix) or len(set(sizes)) != 1:
        return None
    return groups
