"""Reads a cluster: from a YAML (or JSON) file for people, or from the shorthand of the command line.

    name: lab                            # optional; the name of the file otherwise
    nodes:
      - name: a100                       # links and errors call it by this name
        count: 2                         # optional, 1; two nodes are called a100-0 and a100-1
        gpu: A100-80GB-SXM               # a part of the catalogue
        gpus: 8                          # per node
        intra: nvlink                    # optional: nvlink, nvlink-pairs, xgmi, pcie, pcie-host, a bandwidth,
                                         # {link:, latency:, bridge:, groups:} or {matrix:, unit:}
        nics: 200Gbit x4                 # optional, also a list; all together carry the node's traffic
      - {name: box, gpus: [RTX-3090:2, RTX-4090:2]}           # unequal GPUs in one host share its NICs; also
                                         # as two entries with one host: {name: .., host: box, ..}
      - {name: rack, count: 18, gpu: GB200, gpus: 4, domain: 18}      # nodes that one link joins (NVL72)
    network:                             # optional
      default: 100Gbit
      latency: 5us
      links:                             # exceptions, between nodes or groups of nodes
        - {between: [a100, v100], bandwidth: 10Gbit, latency: 20us}
        - {between: [[a100, v100], rack], bandwidth: 1Gbit, shared: true}     # one line for all of them
      matrix:                            # or many at once
        between: [a100, v100, rack]
        unit: Gbit/s
        bandwidth: [[400, 10, 100], [10, -, 10], [100, 10, -]]
    assumed:                             # what the source of this description does not state
      - {what: the network, why: the paper does not state it}

Bandwidths are per direction. What the file leaves out is filled in from the catalogue and from
:mod:`tangram.cluster.defaults`, and noted in ``Cluster.assumptions``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tangram.cluster import defaults
from tangram.cluster.file_network import Network, read_network
from tangram.cluster.file_nodes import NodeEntry, hosts_nics, read_nodes
from tangram.cluster.shorthand import looks_like_shorthand, parse_shorthand
from tangram.cluster.spec import Assumption, Cluster, Node
from tangram.errors import InputError
from tangram.yaml_reader import Value, read_assumed, read_yaml


def load_cluster(path_or_shorthand: str) -> Cluster:
    """Loads a cluster from a file, or from a shorthand when there is no such file.

    Raises:
        InputError: It is neither, or it does not describe a cluster; the error names file, line and field.
        UnknownNameError: A key, GPU or node has an unknown name.
    """
    text = str(path_or_shorthand)
    if not text.strip():
        raise InputError("the name of the cluster file is empty", hint="give a file or a shorthand")
    if looks_like_shorthand(text) and not os.path.lexists(text):
        return parse_shorthand(text)
    return cluster_from_yaml(read_yaml(text, "cluster file"), Path(text).stem)


def cluster_from_yaml(root: Value, default_name: str) -> Cluster:
    """Builds a cluster from a parsed file.

    Args:
        root: The whole file.
        default_name: Name of the cluster when the file gives none.

    Raises:
        InputError: As :func:`load_cluster`.
        UnknownNameError: Likewise.
    """
    _refuse_plans(root)
    top = root.mapping(required=("nodes",), optional=("name", "network", "assumed"))
    name = top["name"].text() if "name" in top else default_name
    if not name.isprintable():
        raise InputError("the name has characters that cannot be printed", where=top["name"].where)
    entries = read_nodes(top["nodes"])
    network = read_network(top.get("network"), entries)
    nics = hosts_nics(entries)
    host_gpus: Counter[str] = Counter()
    for entry in entries:
        host_gpus.update(dict.fromkeys(entry.host_names, entry.num_gpus))
    nodes = tuple(node for entry in entries for node in _expand(entry, network, nics, host_gpus))
    stated = read_assumed(top.get("assumed"))
    assumptions = [Assumption(what, why) for what, why in stated] + _filled_in(entries, network, nodes)
    return Cluster(
        name=name,
        nodes=nodes,
        default_bandwidth_bytes_per_s=network.bandwidth_bytes_per_s,
        default_latency_s=network.latency_s,
        links=network.links,
        assumptions=tuple(assumptions),
    )


def _expand(
    entry: NodeEntry, network: Network, nics: dict[str, float], host_gpus: Mapping[str, int]
) -> list[Node]:
    nodes = []
    for name, host, domain in zip(entry.node_names, entry.host_names, entry.domains, strict=True):
        nodes.append(
            Node(
                name=name,
                gpu=entry.gpu,
                num_gpus=entry.num_gpus,
                intra_bandwidth_bytes_per_s=entry.inside.link.bandwidth_bytes_per_s,
                intra_latency_s=entry.inside.link.latency_s,
                intra_kind=entry.inside.link.kind,
                nic_bandwidth_bytes_per_s=nics.get(host) or network.fastest_at(name, entry.name),
                host=host,
                group=entry.name,
                bridge=entry.inside.bridge,
                domain=domain,
                nic_share_frac=entry.num_gpus / host_gpus[host],
            )
        )
    return nodes


def _filled_in(entries: tuple[NodeEntry, ...], network: Network, nodes: tuple[Node, ...]) -> list[Assumption]:
    """What the file leaves out and this reader filled in."""
    found = []
    silent = "the file does not state it"
    if len({node.host for node in nodes}) > 1:
        if not network.bandwidth_stated:
            rate = defaults.format_rate(network.bandwidth_bytes_per_s)
            found.append(Assumption(f"network of {rate}", silent))
        if not network.latency_stated:
            found.append(Assumption(f"network latency of {network.latency_s * 1e6:g} us", silent))
        hosts = {host for e in entries if e.nic_bytes_per_s is not None for host in e.host_names}
        without = dict.fromkeys(e.name for e in entries if not hosts.intersection(e.host_names))
        if without:
            found.append(Assumption(f"NICs of {', '.join(without)} as fast as the network", silent))
    of_name = Counter(entry.name for entry in entries)
    for entry in entries:
        link = entry.inside.link
        # A mixed host is several entries of one name.
        label = f"{entry.name} ({entry.gpu.name})" if of_name[entry.name] > 1 else entry.name
        what = f"{link.kind} of {link.bandwidth_bytes_per_s / 1e9:g} GB/s inside {label}"
        if not entry.intra_stated and entry.num_gpus > 1:
            found.append(Assumption(what, "the file does not state it; as in the GPU catalogue"))
        elif entry.inside.note is not None:
            found.append(Assumption(what, entry.inside.note))
        domains = len(dict.fromkeys(domain for domain in entry.domains if domain))
        if domains and not entry.domain_stated:
            found.append(defaults.domain_assumption(entry.name, entry.gpu, domains))
    return found


def _refuse_plans(root: Value) -> None:
    """Says what the file is where it is one of Tangram's own."""
    if isinstance(root.content, Mapping) and "format" in root.content and "nodes" not in root.content:
        stated = root.content["format"]
        kind = f" ({stated.content})" if isinstance(stated.content, str) else ""
        raise InputError(
            f"is a file that states its format{kind}, not a cluster file",
            where=stated.where,
            hint="a cluster file has the key 'nodes'; tangram check and tangram simulate take plans",
        )
