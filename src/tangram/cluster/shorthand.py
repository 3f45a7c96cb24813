"""The shorthand for clusters on the command line: ``2x8xH100-80GB-SXM+4x4xA100-40GB-SXM@100Gbit``.

Terms ``nodes x GPUs per node x part`` are joined by ``+``; the network between all nodes follows after ``@``.
Links inside the nodes are the catalogue's, and so are the domains that they span (``18x4xGB200`` is one). For
anything else there is the file
(:mod:`tangram.cluster.readers`).
"""

from __future__ import annotations

import re

from tangram.cluster import catalog, defaults
from tangram.cluster.spec import Assumption, Cluster, Node
from tangram.errors import InputError
from tangram.yaml_reader import shorten

_TERM = re.compile(r"([0-9]{1,9})x([0-9]{1,9})x([^+@\s][^+@]*)")
_EXAMPLE = "write nodes x GPUs x part, for example 2x8xH100-80GB-SXM+4x4xA100-40GB-SXM@100Gbit"


def looks_like_shorthand(text: str) -> bool:
    """Whether the text begins like a shorthand (a count and an x) rather than like the name of a file."""
    return re.match(r"\s*[0-9]+x", text) is not None


def parse_shorthand(text: str) -> Cluster:
    """Parses the shorthand.

    Nodes are named after their part, in small letters and numbered; a part that occurs in two terms gets
    ``.2``.

    Raises:
        InputError: The text does not follow the form, or a number is out of range.
        UnknownNameError: There is no such GPU.
    """
    terms, at, network = text.strip().partition("@")
    place = f"cluster {shorten(text, 80)!r}"
    rate, assumptions = defaults.NETWORK_BANDWIDTH_BYTES_PER_S, []
    if at:
        rate = defaults.bandwidth(network, where=f"{place}, after @")
    nodes: list[Node] = []
    uses: dict[str, int] = {}
    joined: list[Assumption] = []
    for term in terms.split("+"):
        added = _nodes(term.strip(), rate, uses, where=place)
        domains = len(dict.fromkeys(node.domain for node in added if node.domain))
        if domains:
            joined.append(defaults.domain_assumption(added[0].group, added[0].gpu, domains))
        nodes += added
        if len(nodes) > defaults.MAX_NODES:
            raise InputError(f"more than {defaults.MAX_NODES} nodes", where=place)
    if len(nodes) > 1:
        if not at:
            assumptions.append(
                Assumption(f"network of {defaults.format_rate(rate)}", "the shorthand gives none after @")
            )
        assumptions.append(
            Assumption(
                f"network latency of {defaults.NETWORK_LATENCY_S * 1e6:g} us", "a shorthand cannot state it"
            )
        )
    if any(node.num_gpus > 1 for node in nodes):
        assumptions.append(
            Assumption("links inside the nodes as in the GPU catalogue", "a shorthand cannot state them")
        )
    assumptions += joined
    return Cluster(text.strip(), tuple(nodes), rate, defaults.NETWORK_LATENCY_S, (), tuple(assumptions))


def _nodes(term: str, nic: float, uses: dict[str, int], *, where: str) -> list[Node]:
    match = _TERM.fullmatch(term)
    if match is None:
        raise InputError(
            f"{shorten(term, 80)!r} does not follow the form of a shorthand", where=where, hint=_EXAMPLE
        )
    count = _number("nodes", match[1], defaults.MAX_NODES, where)
    num_gpus = _number("GPUs per node", match[2], defaults.MAX_GPUS_PER_NODE, where)
    part = catalog.gpu(match[3].strip(), where=where)
    uses[part.name] = uses.get(part.name, 0) + 1
    group = part.name.lower() + (f".{uses[part.name]}" if uses[part.name] > 1 else "")
    intra = defaults.default_intra(part)
    names = [group] if count == 1 else [f"{group}-{idx}" for idx in range(count)]
    domains = defaults.domains_of(group, count, defaults.domain_nodes(part, num_gpus))
    return [
        Node(
            name=name,
            gpu=part,
            num_gpus=num_gpus,
            intra_bandwidth_bytes_per_s=intra.bandwidth_bytes_per_s,
            intra_latency_s=intra.latency_s,
            intra_kind=intra.kind,
            nic_bandwidth_bytes_per_s=nic,
            host=name,
            group=group,
            domain=domain,
        )
        for name, domain in zip(names, domains, strict=True)
    ]


def _number(what: str, digits: str, high: int, where: str) -> int:
    number = int(digits)
    if not 1 <= number <= high:
        raise InputError(f"{number} {what} is out of range", where=where, hint=f"legal: 1 to {high}")
    return number
