"""The cluster as plain data, without loss, and its fingerprint."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from tangram.cluster.spec import Assumption, Bridge, Cluster, GpuSpec, Link, Node
from tangram.errors import InputError, UnknownNameError
from tangram.job import Precision

_RATES = ("peak_flop_per_s", "achieved_flop_per_s")
_OPTIONAL = {"bridge", "domain", "nic_share_frac", "line"}
"""Fields that plain nodes and links do not have: left out where they say nothing, so that what was written
before there were any reads and writes the same."""


def cluster_to_dict(cluster: Cluster) -> dict[str, Any]:
    """Returns the cluster as dictionaries, lists, texts and numbers that JSON can hold.

    Every part stands once under ``gpus``; nodes keep their order and name their part.

    Raises:
        InputError: Two different parts of the cluster have one name.
    """
    parts: dict[str, GpuSpec] = {}
    for node in cluster.nodes:
        if parts.setdefault(node.gpu.name, node.gpu) != node.gpu:
            raise InputError(
                f"two different GPUs of the cluster are called {node.gpu.name!r}", where=node.name
            )
    data = {name: getattr(cluster, name) for name in _defaults(Cluster)}
    return data | {
        "gpus": [_part_to_dict(parts[name]) for name in sorted(parts)],
        "nodes": [_values(node) | {"gpu": node.gpu.name} for node in cluster.nodes],
        "links": [_values(link) for link in cluster.links],
        "assumptions": [_values(assumption) for assumption in cluster.assumptions],
    }


def cluster_from_dict(data: Mapping[str, Any]) -> Cluster:
    """Returns the cluster that :func:`cluster_to_dict` described.

    Raises:
        InputError: A field is missing, unknown, or of the wrong type.
        UnknownNameError: A node names a part that is not under ``gpus``.
    """
    try:
        parts = {part["name"]: _part_from_dict(part) for part in data["gpus"]}
        nodes = []
        for node in data["nodes"]:
            if node["gpu"] not in parts:
                raise UnknownNameError("GPU", node["gpu"], parts, where=f"node {node['name']}")
            nodes.append(Node(**{**node, "gpu": parts[node["gpu"]], "bridge": _bridge(node.get("bridge"))}))
        values = {name: data[name] for name in _defaults(Cluster)}
        lists = {
            "nodes": tuple(nodes),
            "links": tuple(Link(**link) for link in data["links"]),
            "assumptions": tuple(Assumption(**assumption) for assumption in data["assumptions"]),
        }
        return Cluster(**{**values, **lists})
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise InputError(f"this is not a cluster: {type(err).__name__}: {err}") from err


def fingerprint(cluster: Cluster) -> str:
    """Returns 16 hexadecimal digits that are equal for equal clusters.

    Neither the order of nodes and links, nor which end of a link is written first, nor what is only printed
    (the cluster's name, its assumptions, the sources of its parts) changes it. The names of nodes do, since
    plans use them.
    """
    data = cluster_to_dict(cluster)
    for unprinted in ("name", "assumptions"):
        del data[unprinted]
    for part in data["gpus"]:
        del part["source"]
    data["nodes"].sort(key=lambda node: node["name"])
    for link in data["links"]:
        link["a"], link["b"] = sorted((link["a"], link["b"]))
    data["links"].sort(key=lambda link: sorted(link.items(), key=str))
    text = json.dumps(_canonical(data), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _canonical(value: Any) -> Any:
    """Writes numbers with 9 digits: 1 equals 1.0, and a number equals its rounded self in a plan file."""
    if isinstance(value, dict):
        return {name: _canonical(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_canonical(member) for member in value]
    return value if isinstance(value, str) else f"{value:.9g}"


@cache  # of the tens of thousands of nodes of a cluster
def _defaults(kind: type) -> dict[str, Any]:
    """The fields of a class and their defaults."""
    return {field.name: field.default for field in dataclasses.fields(kind)}


def _values(item: Node | Link | Assumption) -> dict[str, Any]:
    kind: type = type(item)
    defaults = _defaults(kind)
    values = {name: getattr(item, name) for name in defaults}
    for name in _OPTIONAL:
        if name in values and values[name] == defaults[name]:
            del values[name]
    if isinstance(item, Node) and item.bridge is not None:
        values["bridge"] = dataclasses.asdict(item.bridge) | {"groups": [list(g) for g in item.bridge.groups]}
    return values


def _bridge(data: Mapping[str, Any] | None) -> Bridge | None:
    if data is None:
        return None
    return Bridge(**{**data, "groups": tuple(tuple(group) for group in data["groups"])})


def _part_to_dict(part: GpuSpec) -> dict[str, Any]:
    values = {name: getattr(part, name) for name in _defaults(GpuSpec)}
    for name in _RATES:
        rates = values[name]
        values[name] = {precision.value: rates[precision] for precision in Precision if precision in rates}
    return values


def _part_from_dict(data: Mapping[str, Any]) -> GpuSpec:
    values = dict(data)
    for name in _RATES:
        values[name] = {Precision(precision): rate for precision, rate in data[name].items()}
    return GpuSpec(**values)
