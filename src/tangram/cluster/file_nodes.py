"""The ``nodes`` of a cluster file: one entry per group of equal nodes.

An entry with a count of n > 1 stands for the nodes ``name-0`` to ``name-(n-1)``; links may be given to one
of them or, by the name of the entry, to all. The GPUs are ``gpu: A100-80GB-SXM`` and ``gpus: 8``, or in one
``gpus: A100-80GB-SXM:8``; a host with unequal ones lists them, ``gpus: [RTX-3090:2, RTX-4090:2]``, and
becomes one node for each part (``box.rtx-3090``, ``box.rtx-4090``) with common NICs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tangram.cluster import catalog, defaults
from tangram.cluster.file_intra import Inside, default_inside, read_inside
from tangram.cluster.spec import GpuSpec
from tangram.errors import InputError
from tangram.yaml_reader import Kind, Value, shorten

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_NICS = re.compile(r"(.*?)(?:\s*[x×]\s*([0-9]+))?\s*", re.DOTALL)
_COUNTED = re.compile(r"(.+?)\s*:\s*([0-9]{1,9})\s*", re.DOTALL)
_COUNTED_FORM = "a part and how many, such as RTX-4090:2"
_MAX_NICS = 64


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """One entry: ``count`` equal nodes.

    Attributes:
        name: Name of the entry; the group of its nodes.
        node_names, host_names: Per node.
        gpu, num_gpus: The part, and how many per node.
        inside: The links inside a node.
        intra_stated: Whether the file gives them.
        domains: Per node, the domain that its link inside spans; None for a node by itself.
        domain_stated: Whether the file says so, or that there is none.
        nic_bytes_per_s: All NICs of a node together, or None when the file does not say.
        value: The entry in the file, for errors.
    """

    name: str
    node_names: tuple[str, ...]
    host_names: tuple[str, ...]
    gpu: GpuSpec
    num_gpus: int
    inside: Inside
    intra_stated: bool
    domains: tuple[str | None, ...]
    domain_stated: bool
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
        found = _read_entry(item)
        total += sum(len(entry.node_names) for entry in found)
        if total > defaults.MAX_NODES:
            raise InputError(f"the cluster has more than {defaults.MAX_NODES} nodes", where=item.where)
        names = [name for entry in found for name in (entry.name, *entry.node_names)]
        # A mixed host of this entry is called like no node, and links may be given to it as well.
        names += [host for entry in found[1:] for host in entry.host_names]
        for name in dict.fromkeys(names):
            if name in taken:
                raise InputError(
                    f"the name {name!r} is taken",
                    where=item.where,
                    hint=f"another entry uses it, in line {taken[name].line}",
                )
            taken[name] = item
        entries += found
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


def _read_entry(value: Value) -> list[NodeEntry]:
    """Reads an entry: one group of nodes, or one for each part of a mixed host."""
    fields = value.mapping(
        required=("name", "gpus"), optional=("gpu", "count", "intra", "nics", "host", "domain")
    )
    name = _name(fields["name"])
    count = fields["count"].integer(1, defaults.MAX_NODES) if "count" in fields else 1
    parts = _parts(fields, value)
    hosts = _numbered(name, count)
    if len(parts) > 1 and "host" in fields:
        raise InputError(
            "a list of GPUs is a host already", where=fields["host"].where, hint="leave 'host' out"
        )
    if "host" in fields:
        hosts = _numbered(_name(fields["host"]), count)
    entries = []
    for part, num_gpus in parts:
        names = _numbered(name, count)
        if len(parts) > 1:
            names = tuple(f"{host}.{part.name.lower()}" for host in hosts)
        domains, domain_stated = _domains(fields.get("domain"), name, part, num_gpus, count)
        inside = read_inside(fields["intra"], part, num_gpus) if "intra" in fields else default_inside(part)
        if any(domains) and inside.link.kind.startswith("pcie"):
            raise InputError(
                f"the link inside {name!r} is PCIe, which joins no domain of nodes",
                where=(fields.get("domain") or fields["intra"]).where,
                hint="write domain: none",
            )
        entries.append(
            NodeEntry(
                name=name,
                node_names=names,
                host_names=hosts,
                gpu=part,
                num_gpus=num_gpus,
                inside=inside,
                intra_stated="intra" in fields,
                domains=domains,
                domain_stated=domain_stated,
                nic_bytes_per_s=_nics(fields["nics"]) if "nics" in fields else None,
                value=value,
            )
        )
    return entries


def _parts(fields: Mapping[str, Value], entry: Value) -> list[tuple[GpuSpec, int]]:
    """The GPUs of one host: parts, and how many of each."""
    gpus = fields["gpus"]
    if "gpu" not in fields and gpus.kind in (Kind.LIST, Kind.TEXT):
        items = gpus.items() if gpus.kind is Kind.LIST else (gpus,)
        parts = [_counted(item) for item in items]
        names = [part.name for part, _ in parts]
        for idx, name in enumerate(names):
            if name in names[:idx]:
                raise InputError(f"{name} is listed twice", where=items[idx].where, hint="add up the counts")
        if not parts:
            raise InputError("the list of GPUs is empty", where=gpus.where, hint=_COUNTED_FORM)
        return parts
    if "gpu" not in fields:
        raise InputError(
            "the key 'gpu' is missing",
            where=entry.where,
            hint="needed: name, gpu, gpus; or both in one, such as gpus: A100-80GB-SXM:8",
        )
    part = catalog.gpu(fields["gpu"].text("a GPU such as A100-80GB-SXM"), where=fields["gpu"].where)
    return [(part, gpus.integer(1, defaults.MAX_GPUS_PER_NODE))]


def _counted(value: Value) -> tuple[GpuSpec, int]:
    text = value.text(_COUNTED_FORM)
    match = _COUNTED.fullmatch(text)
    if match is None:
        raise InputError(f"{shorten(text)!r} does not say how many", where=value.where, hint=_COUNTED_FORM)
    count = int(match[2])
    if not 1 <= count <= defaults.MAX_GPUS_PER_NODE:
        raise InputError(
            f"{count} GPUs are out of range",
            where=value.where,
            hint=f"legal: 1 to {defaults.MAX_GPUS_PER_NODE}",
        )
    return catalog.gpu(match[1], where=value.where), count


def _domains(
    value: Value | None, name: str, part: GpuSpec, num_gpus: int, count: int
) -> tuple[tuple[str | None, ...], bool]:
    """Which nodes one link joins: a name for all of them, how many nodes a domain has, or ``none``."""
    if value is None:
        size = defaults.domain_nodes(part, num_gpus)
        return defaults.domains_of(name, count, size), False
    if value.kind is Kind.TEXT:
        text = _name(value)
        return (None if text.lower() == "none" else text,) * count, True
    return defaults.domains_of(name, count, value.integer(1, defaults.MAX_NODES)), True


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


def _nics(value: Value) -> float:
    """Reads ``100Gbit``, ``200Gbit x4`` or a list of these: all NICs of a node together."""
    if value.kind is Kind.LIST:
        if not value.items():
            raise InputError("the list of NICs is empty", where=value.where, hint="leave 'nics' out")
        return sum(_nic(item) for item in value.items())
    return _nic(value)


def _nic(value: Value) -> float:
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
