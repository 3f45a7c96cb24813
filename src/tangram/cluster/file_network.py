"""The ``network`` of a cluster file: a default between all nodes, and links that differ from it."""

from __future__ import annotations

from dataclasses import dataclass

from tangram.cluster import defaults
from tangram.cluster.file_nodes import NodeEntry
from tangram.cluster.spec import Link
from tangram.errors import InputError, UnknownNameError
from tangram.yaml_reader import Value


@dataclass(frozen=True, slots=True)
class Network:
    """The network between the nodes.

    Attributes:
        bandwidth_bytes_per_s, latency_s: Between two nodes without a link of their own.
        bandwidth_stated, latency_stated: Whether the file gives them.
        links: The exceptions, in the order of the file.
    """

    bandwidth_bytes_per_s: float
    latency_s: float
    bandwidth_stated: bool
    latency_stated: bool
    links: tuple[Link, ...]

    def fastest_at(self, *names: str) -> float:
        """Returns what a node's NICs must carry so that none of its links is slower than the file says.

        Args:
            names: Name and group of the node.
        """
        own = [link.bandwidth_bytes_per_s for link in self.links if link.a in names or link.b in names]
        return max([self.bandwidth_bytes_per_s, *own])


def read_network(value: Value | None, entries: tuple[NodeEntry, ...]) -> Network:
    """Reads the network; None stands for a file without one.

    Raises:
        InputError: A field is of the wrong type or out of range; a link is given twice, or joins a node
            with itself.
        UnknownNameError: A link names no node and no group.
    """
    fields = value.mapping(optional=("default", "latency", "links")) if value is not None else {}
    rate = _bandwidth(fields["default"]) if "default" in fields else defaults.NETWORK_BANDWIDTH_BYTES_PER_S
    latency_s = _latency(fields["latency"]) if "latency" in fields else defaults.NETWORK_LATENCY_S
    links = _links(fields["links"], entries, latency_s) if "links" in fields else ()
    return Network(rate, latency_s, "default" in fields, "latency" in fields, links)


def _links(value: Value, entries: tuple[NodeEntry, ...], latency_s: float) -> tuple[Link, ...]:
    hosts = _hosts_by_name(entries)
    links = []
    seen: dict[tuple[str, str], int] = {}
    for item in value.items():
        fields = item.mapping(required=("between", "bandwidth"), optional=("latency",))
        a, b = _ends(fields["between"], hosts)
        pair = (min(a, b), max(a, b))
        if pair in seen:
            raise InputError(
                f"the link between {a!r} and {b!r} is given twice",
                where=item.where,
                hint=f"first in line {seen[pair]}",
            )
        seen[pair] = item.line
        latency = _latency(fields["latency"]) if "latency" in fields else latency_s
        links.append(Link(a, b, _bandwidth(fields["bandwidth"]), latency))
    return tuple(links)


def _ends(value: Value, hosts: dict[str, frozenset[str]]) -> tuple[str, str]:
    ends = value.items()
    if len(ends) != 2:
        raise InputError(f"expected two names, found {len(ends)}", where=value.where, hint="between: [a, b]")
    names = []
    for end in ends:
        name = end.text("the name of a node or group")
        if name not in hosts:
            raise UnknownNameError("node or group", name, hosts, where=end.where)
        names.append(name)
    a, b = names
    if len(hosts[a] | hosts[b]) == 1:
        raise InputError(
            f"{a!r} and {b!r} are one host, so no network link joins them",
            where=value.where,
            hint="the field 'intra' describes links inside a node",
        )
    return a, b


def _hosts_by_name(entries: tuple[NodeEntry, ...]) -> dict[str, frozenset[str]]:
    """Returns, for each node and group, the hosts it stands for."""
    hosts = {}
    for entry in entries:
        hosts[entry.name] = frozenset(entry.host_names)
        hosts |= {
            name: frozenset((host,)) for name, host in zip(entry.node_names, entry.host_names, strict=True)
        }
    return hosts


def _bandwidth(value: Value) -> float:
    return defaults.bandwidth(value.text("a bandwidth such as 100Gbit"), where=value.where)


def _latency(value: Value) -> float:
    return defaults.latency(value.text("a duration such as 5us"), where=value.where)
