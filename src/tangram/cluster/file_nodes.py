"""The ``nodes`` of a cluster file: one entry per group of equal nodes.

An entry with a count of n > 1 stands for the nodes ``name-0`` to ``name-(n-1)``; links may be given to one
of them or, by the name of the entry, to all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tangram.cluster import catalog, defaults
from tangram.cluster.defaults import IntraLink
from tangram.cluster.spec import GpuSpec
from tangram.errors import InputError
from tangram.yaml_reader import Kind, Value, shorten

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_NICS = re.compile(r"(.*?)(?:\s*[x×]\s*([0-9]+))?\s*", re.DOTALL)
_LINK_KINDS = ("nvlink", "xgmi", "pcie")
_MAX_NICS = 64


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """One entry: ``count`` equal nodes.

    Attributes:
        name: Name of the entry; the group of its nodes.
        node_names, host_names: Per node.
        gpu, num_gpus: The part, and how many per node.
        intra: The link inside a node.
        intra_stated: Whether the file gives it.
        nic_bytes_per_s: All NICs of a node together, or None when the file does not say.
        value: The entry in the file, for errors.
    """

    name: str
    node_names: tuple[str, ...]
    host_names: tuple[str, ...]
    gpu: GpuSpec
    num_gpus: int
    intra: IntraLink
    intra_stated: bool
    nic_bytes_per_s: float | None
    value: Value


def read_nodes(value: Value) -> tuple[NodeEntry, ...]:
    """Reads the list of entries, and checks that no two things have one name.

    Raises:
        InputError: A field is missing, of the wrong type or out of range, or a name is taken.
        UnknownNameError: An unknown key or GPU.
    """
    items = value.items()
    if not items:
        raise InputError("the list of nodes is empty", where=value.where)
    entries: list[NodeEntry] = []
    taken: dict[str, Value] = {}
    total = 0
    for item in items:
        entry = _read_entry(item)
        total += len(entry.node_names)
        if total > defaults.MAX_NODES:
            raise InputError(f"the cluster has more than {defaults.MAX_NODES} nodes", where=item.where)
        for name in dict.fromkeys((entry.name, *entry.node_names)):
            if name in taken:
                raise InputError(
                    f"the name {name!r} is taken",
                    where=item.where,
                    hint=f"another entry uses it, in line {taken[name].line}",
                )
            taken[name] = item
        entries.append(entry)
    return tuple(entries)


def hosts_nics(entries: tuple[NodeEntry, ...]) -> dict[str, float]:
    """Returns the NICs of each host for which some entry states them, in bytes per second.

    Raises:
        InputError: Two entries share a host, but their counts or the NICs they state differ.
    """
    stated: dict[str, tuple[float, NodeEntry]] = {}
    first: dict[str, NodeEntry] = {}
    for entry in entries:
        for host in entry.host_names:
            other = first.setdefault(host, entry)
            if len(other.node_names) != len(entry.node_names):
                raise InputError(
                    f"{entry.name!r} and {other.name!r} share hosts, so they need the same count",
                    where=entry.value.where,
                )
            if entry.nic_bytes_per_s is None:
                continue
            rate, owner = stated.setdefault(host, (entry.nic_bytes_per_s, entry))
            if rate != entry.nic_bytes_per_s:
                raise InputError(
                    f"{entry.name!r} and {owner.name!r} share host {host!r} but state different NICs",
                    where=entry.value.where,
                    hint="state the NICs of a shared host once",
                )
    return {host: rate for host, (rate, _) in stated.items()}


def _read_entry(value: Value) -> NodeEntry:
    fields = value.mapping(required=("name", "gpu", "gpus"), optional=("count", "intra", "nics", "host"))
    name = _name(fields["name"])
    count = fields["count"].integer(1, defaults.MAX_NODES) if "count" in fields else 1
    part = catalog.gpu(
        fields["gpu"].text("a GPU such as A100-80GB-SXM"),
        where=fields["gpu"].where,
    )
    num_gpus = fields["gpus"].integer(1, defaults.MAX_GPUS_PER_NODE)
    node_names = _numbered(name, count)
    return NodeEntry(
        name=name,
        node_names=node_names,
        host_names=_numbered(_name(fields["host"]), count) if "host" in fields else node_names,
        gpu=part,
        num_gpus=num_gpus,
        intra=_intra(fields["intra"], part, num_gpus) if "intra" in fields else defaults.default_intra(part),
        intra_stated="intra" in fields,
        nic_bytes_per_s=_nics(fields["nics"]) if "nics" in fields else None,
        value=value,
    )


def _numbered(name: str, count: int) -> tuple[str, ...]:
    return (name,) if count == 1 else tuple(f"{name}-{idx}" for idx in range(count))


def _name(value: Value) -> str:
    name = value.text()
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{shorten(name)!r} cannot be a name",
            where=value.where,
            hint="up to 64 letters, digits, '.', '_' and '-', no space",
        )
    return name


def _intra(value: Value, part: GpuSpec, num_gpus: int) -> IntraLink:
    """Reads ``nvlink``, ``300GB/s`` or ``{link: nvlink, latency: 3us}``."""
    if value.kind is not Kind.MAPPING:
        return _intra_link(value, part, num_gpus)
    fields = value.mapping(required=("link",), optional=("latency",))
    link = _intra_link(fields["link"], part, num_gpus)
    if "latency" not in fields:
        return link
    latency_s = defaults.latency(
        fields["latency"].text("a duration such as 3us"), where=fields["latency"].where
    )
    return IntraLink(link.kind, link.bandwidth_bytes_per_s, latency_s)


def _intra_link(value: Value, part: GpuSpec, num_gpus: int) -> IntraLink:
    text = value.text("nvlink, xgmi, pcie or a bandwidth such as 300GB/s")
    if text.lower() in _LINK_KINDS:
        return defaults.named_intra(text.lower(), part, num_gpus, where=value.where)
    if not text[0].isdigit():
        raise InputError(
            f"unknown link {shorten(text)!r}",
            where=value.where,
            hint="legal: nvlink, xgmi, pcie or a bandwidth such as 300GB/s",
        )
    rate = defaults.bandwidth(text, where=value.where)
    # A link as fast as PCIe behaves like it; the name only serves print and the latency.
    kind = "pcie" if rate <= part.pcie_bytes_per_s else "link"
    latency_s = defaults.PCIE_LATENCY_S if kind == "pcie" else defaults.LINK_LATENCY_S
    return IntraLink(kind, rate, latency_s)


def _nics(value: Value) -> float:
    """Reads ``100Gbit`` or ``200Gbit x4``, all NICs of a node together."""
    text = value.text("NICs such as 100Gbit or 200Gbit x4")
    match = _NICS.fullmatch(text)
    assert match is not None, "the pattern accepts every text"
    rate = defaults.bandwidth(match[1], where=value.where)
    count = int(match[2]) if match[2] and len(match[2]) <= 6 else 1 if not match[2] else 0
    if not 1 <= count <= _MAX_NICS:
        raise InputError(
            f"{shorten(match[2])} NICs are out of range", where=value.where, hint=f"legal: x1 to x{_MAX_NICS}"
        )
    return rate * count
