"""Clusters as plain data: lossless, and a fingerprint that sees through the order."""

from __future__ import annotations

import dataclasses
import json

import pytest
from cluster_strategies import cluster, clusters, node, slower
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.cluster import catalog
from tangram.cluster.serial import cluster_from_dict, cluster_to_dict, fingerprint
from tangram.cluster.shorthand import parse_shorthand
from tangram.cluster.spec import Assumption, Cluster
from tangram.errors import InputError, UnknownNameError


@settings(max_examples=60, deadline=None, derandomize=True)
@given(clusters())
def test_json_there_and_back_loses_nothing(some: Cluster) -> None:
    text = json.dumps(cluster_to_dict(some))
    back = cluster_from_dict(json.loads(text))
    assert back == some
    assert fingerprint(back) == fingerprint(some)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(clusters(), st.randoms(use_true_random=False))
def test_order_does_not_change_the_fingerprint(some: Cluster, random: object) -> None:
    nodes, links = list(some.nodes), list(some.links)
    random.shuffle(nodes)  # type: ignore[attr-defined]
    random.shuffle(links)  # type: ignore[attr-defined]
    links = [dataclasses.replace(link, a=link.b, b=link.a) for link in links]
    shuffled = dataclasses.replace(some, nodes=tuple(nodes), links=tuple(links), name="other")
    shuffled = dataclasses.replace(shuffled, assumptions=(Assumption("a", "b"),))
    assert fingerprint(shuffled) == fingerprint(some)


def test_what_a_plan_depends_on_changes_the_fingerprint() -> None:
    base = parse_shorthand("2x8xT4@100Gbit")
    first = base.nodes[0]
    changed = [
        dataclasses.replace(base, default_bandwidth_bytes_per_s=1e9),
        dataclasses.replace(base, default_latency_s=1e-6),
        dataclasses.replace(base, nodes=base.nodes[:1]),
        *(
            dataclasses.replace(base, nodes=(dataclasses.replace(first, **{field: value}), base.nodes[1]))
            for field, value in {
                "name": "x",
                "num_gpus": 4,
                "gpu": slower(first.gpu, 0.9),
                "nic_bandwidth_bytes_per_s": 1e9,
                "intra_bandwidth_bytes_per_s": 1e9,
                "host": "x",
            }.items()
        ),
    ]
    prints = [fingerprint(c) for c in (base, *changed)]
    assert len(set(prints)) == len(prints)
    assert all(len(p) == 16 for p in prints)


def test_a_number_and_its_rounded_self_agree() -> None:
    base = parse_shorthand("1x8xT4")
    near = dataclasses.replace(base, default_bandwidth_bytes_per_s=base.default_bandwidth_bytes_per_s + 1e-3)
    assert fingerprint(near) == fingerprint(base)


def test_refusals() -> None:
    base = parse_shorthand("1x8xT4")
    data = cluster_to_dict(base)
    for broken in (
        {},
        data | {"nodes": 3},
        data | {"gpus": [{"name": "T4"}]},
        data | {"links": [{"a": "x"}]},
    ):
        with pytest.raises(InputError, match="not a cluster"):
            cluster_from_dict(broken)
    with pytest.raises(UnknownNameError):
        cluster_from_dict(data | {"gpus": []})
    part = catalog.gpu("T4")
    twins = cluster([node("a", part), node("b", dataclasses.replace(part, pcie_bytes_per_s=1e9))])
    with pytest.raises(InputError, match="called 'T4'"):
        cluster_to_dict(twins)
