"""The ``network`` of a cluster file: a default between all nodes, and links that differ from it.

Links stand one by one or in a matrix. A *shared* link is one line for everybody at its ends: two sites with
1 Gbit/s between them, however many nodes talk. Its ends may be lists of names.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from tangram.cluster import defaults
from tangram.cluster.file_matrix import read_matrix
from tangram.cluster.file_nodes import NodeEntry
from tangram.cluster.spec import Link
from tangram.errors import InputError, UnknownNameError
from tangram.yaml_reader import Kind, Value


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
    fields = value.mapping(optional=("default", "latency", "links", "matrix")) if value is not None else {}
    rate = _bandwidth(fields["default"]) if "default" in fields else defaults.NETWORK_BANDWIDTH_BYTES_PER_S
    latency_s = _latency(fields["latency"]) if "latency" in fields else defaults.NETWORK_LATENCY_S
    places = _Places.of(entries)
    seen: dict[tuple[str, str], int] = {}
    links = _links(fields["links"], places, latency_s, seen) if "links" in fields else []
    if "matrix" in fields:
        links += _matrix(fields["matrix"], places, latency_s, seen)
    return Network(rate, latency_s, "default" in fields, "latency" in fields, tuple(links))


@dataclass(frozen=True, slots=True)
class _Places:
    """What links may name.

    Attributes:
        hosts: For each node and group, and each mixed host, the hosts it stands for.
        nodes_of: For each mixed host, its nodes.
        domain: For each node and group, the domain of all its nodes; None without.
    """

    hosts: dict[str, frozenset[str]]
    nodes_of: dict[str, tuple[str, ...]]
    domain: dict[str, str | None]

    @staticmethod
    def of(entries: tuple[NodeEntry, ...]) -> _Places:
        """Collects the names of all entries."""
        hosts: dict[str, frozenset[str]] = {}
        nodes_of: dict[str, tuple[str, ...]] = {}
        domain: dict[str, str | None] = {}
        for entry in entries:
            hosts[entry.name] = hosts.get(entry.name, frozenset()) | frozenset(entry.host_names)
            domain[entry.name] = entry.domains[0] if len(set(entry.domains)) == 1 else None
            for name, host, own in zip(entry.node_names, entry.host_names, entry.domains, strict=True):
                hosts[name] = frozenset((host,))
                domain[name] = own
                nodes_of[host] = (*nodes_of.get(host, ()), name)
        mixed = {host: nodes for host, nodes in nodes_of.items() if host not in hosts and len(nodes) > 1}
        return _Places(hosts | {host: frozenset((host,)) for host in mixed}, mixed, domain)

    def name(self, value: Value) -> str:
        """Reads the name of a node, group or mixed host.

        Raises:
            UnknownNameError: There is none of that name.
        """
        name = value.text("the name of a node or group")
        if name not in self.hosts:
            raise UnknownNameError("node or group", name, self.hosts, where=value.where)
        return name

    def check_apart(self, a: str, b: str, where: str) -> None:
        """Refuses a network link inside a host or a domain.

        Raises:
            InputError: No network link joins the two.
        """
        if len(self.hosts[a] | self.hosts[b]) == 1:
            raise InputError(
                f"{a!r} and {b!r} are one host, so no network link joins them",
                where=where,
                hint="the field 'intra' describes links inside a node",
            )
        domain = self.domain.get(a)
        if domain is not None and domain == self.domain.get(b):
            raise InputError(
                f"{a!r} and {b!r} are in one domain, whose nodes talk over the link inside",
                where=where,
                hint="the field 'intra' describes it; domain: none takes them apart",
            )

    def links(self, a: str, b: str, rate: float, latency_s: float, line: str | None) -> list[Link]:
        """Returns the links between two names; a mixed host stands for each of its nodes."""
        ends = [self.nodes_of.get(name, (name,)) for name in (a, b)]
        return [Link(x, y, rate, latency_s, line) for x, y in product(*ends)]


def _links(value: Value, places: _Places, latency_s: float, seen: dict[tuple[str, str], int]) -> list[Link]:
    links = []
    for item in value.items():
        fields = item.mapping(required=("between", "bandwidth"), optional=("latency", "shared"))
        shared = "shared" in fields and _yes_or_no(fields["shared"])
        left, right = _ends(fields["between"], places, shared=shared)
        rate = _bandwidth(fields["bandwidth"])
        latency = _latency(fields["latency"]) if "latency" in fields else latency_s
        line = f"{'+'.join(left)}~{'+'.join(right)}" if shared else None
        for a, b in product(left, right):
            places.check_apart(a, b, fields["between"].where)
            _check_new(a, b, item, seen)
            links += places.links(a, b, rate, latency, line)
    return links


def _check_new(a: str, b: str, item: Value, seen: dict[tuple[str, str], int]) -> None:
    pair = (min(a, b), max(a, b))
    if pair in seen:
        raise InputError(
            f"the link between {a!r} and {b!r} is given twice",
            where=item.where,
            hint=f"first in line {seen[pair]}",
        )
    seen[pair] = item.line


def _ends(value: Value, places: _Places, *, shared: bool) -> tuple[list[str], list[str]]:
    ends = value.items()
    if len(ends) != 2:
        raise InputError(f"expected two names, found {len(ends)}", where=value.where, hint="between: [a, b]")
    found = []
    for end in ends:
        if end.kind is Kind.LIST:
            if not shared:
                raise InputError(
                    "several names at one end",
                    where=end.where,
                    hint="add shared: true, or write one link each",
                )
            if not end.items():
                raise InputError("an end without names", where=end.where, hint="between: [[a, b], c]")
            found.append([places.name(name) for name in end.items()])
        else:
            found.append([places.name(end)])
    return found[0], found[1]


def _matrix(value: Value, places: _Places, latency_s: float, seen: dict[tuple[str, str], int]) -> list[Link]:
    """Links between all pairs of names; on the diagonal those among the nodes of a group."""
    fields = value.mapping(required=("between", "bandwidth"), optional=("unit", "latency"))
    names = [places.name(name) for name in fields["between"].items()]
    matrix = read_matrix(fields["bandwidth"], names, fields.get("unit"))
    latency = _latency(fields["latency"]) if "latency" in fields else latency_s
    links = []
    for i, a in enumerate(names):
        for j, b in enumerate(names[: i + 1]):
            rate = matrix[i][j]
            if rate is None or (i == j and len(places.hosts[a]) == 1):
                continue
            places.check_apart(a, b, fields["between"].where)
            _check_new(a, b, value, seen)
            links += places.links(a, b, rate, latency, None)
    return links


def _yes_or_no(value: Value) -> bool:
    words = {"true": True, "yes": True, "false": False, "no": False}
    if not isinstance(value.content, str) or value.content.lower() not in words:
        raise InputError("expected true or false", where=value.where)
    return words[value.content.lower()]


def _bandwidth(value: Value) -> float:
    return defaults.bandwidth(value.text("a bandwidth such as 100Gbit"), where=value.where)


def _latency(value: Value) -> float:
    return defaults.latency(value.text("a duration such as 5us"), where=value.where)
