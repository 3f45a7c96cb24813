"""Islands of the example clusters and of small clusters worked out by hand."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest
from cluster_strategies import cluster, clusters, node, precisions
from hypothesis import given, settings

from tangram.cluster.classes import classify
from tangram.cluster.islands import Tolerances, build_islands, violations
from tangram.cluster.readers import load_cluster
from tangram.cluster.shorthand import parse_shorthand
from tangram.cluster.spec import Cluster, Island, Link
from tangram.errors import InputError
from tangram.job import Precision

EXAMPLES = Path(__file__).parents[2] / "examples" / "clusters"
A100, V32, V16, T4, H100 = "A100-80GB-SXM", "V100-32GB-SXM2", "V100-16GB-SXM2", "T4", "H100-80GB-SXM"
INF = float("inf")

EXPECTED = {
    "a100-v100-mixed": [(A100, 1, 4), (V32, 1, 8)],
    "c1-t4-v100-4-4": [(V16, 1, 4), (T4, 1, 4)],
    "c1-t4-v100-8-8": [(V16, 2, 4), (T4, 2, 4)],
    "c1-t4-16": [(T4, 4, 4)],
    "c1-v100-16": [(V16, 4, 4)],
    "c2-h100-a100": [(H100, 1, 8), (A100, 1, 8)],
    "c3-a100": [(A100, 1, 4)],
    "c3-two-islands": [(A100, 1, 4), (V32, 1, 8)],
    "c3-three-islands": [(A100, 1, 4), (V32, 1, 8), (V16, 1, 4)],
    "c3-four-islands": [(A100, 1, 4), (V32, 1, 8), (V16, 1, 4), (T4, 1, 4)],
    "consumer-10gbe": [
        ("RTX-4090", 1, 4),
        ("RTX-4090#2", 2, 2),
        ("RTX-3090", 2, 2),
        ("RTX-3090#2", 1, 2),
    ],
    "measured-links": [("RTX-A6000", 1, 4), ("L4", 2, 4), ("RTX-3090", 1, 4)],
    "nvl72-racks": [("GB200", 18, 4), ("GB200#2", 18, 4)],
    "ragged-lab": [(A100, 1, 2), ("A40", 1, 4), ("RTX-3090", 2, 8)],
    "two-sites": [(A100, 2, 8), (V32, 2, 8), (f"{V32}#2", 1, 4)],
}


def groups(islands: tuple[Island, ...]) -> list[str]:
    return sorted(" ".join(n.name for n in island.nodes) for island in islands)


def islands_of(
    nodes: list, links: list | None = None, network: float = 0.5, default: float = 12.5e9
) -> list[str]:
    some = cluster(nodes, links or [], default)
    limits = Tolerances(network=network)
    islands = build_islands(some, Precision.FP16, limits)
    assert violations(islands, some, Precision.FP16, limits) == []
    return groups(islands)


@pytest.mark.parametrize("name", EXPECTED)
def test_examples(name: str) -> None:
    some = load_cluster(str(EXAMPLES / f"{name}.yaml"))
    assert some.name == name
    islands = build_islands(some, Precision.FP16)
    assert sorted((i.name, i.num_nodes, i.gpus_per_node) for i in islands) == sorted(EXPECTED[name])
    assert violations(islands, some, Precision.FP16, Tolerances()) == []
    assert bool(some.assumptions) is (name != "a100-v100-mixed")


def test_every_example_is_tested() -> None:
    assert {p.stem for p in EXAMPLES.glob("*")} == set(EXPECTED)


def test_reasons_say_what_differs() -> None:
    islands = build_islands(load_cluster(str(EXAMPLES / "c3-four-islands.yaml")), Precision.FP16)
    assert islands[0].reasons == (
        (
            "A100-80GB-SXM differs from V100-32GB-SXM2: 4 against 8 GPUs per node, compute 2.9x, "
            "memory 2.5x, intra-node links 2.0x"
        ),
        "A100-80GB-SXM differs from V100-16GB-SXM2: compute 2.9x, memory 5.0x, intra-node links 2.0x",
        "A100-80GB-SXM differs from T4: compute 11.3x, memory 5.3x, intra-node links 18.8x",
    )


def test_a_part_without_the_precision_is_an_island_of_its_own() -> None:
    some = cluster([node("a", A100), node("v", V16), node("t", T4)])
    anything = Tolerances(INF, INF, INF, INF)
    islands = build_islands(some, Precision.BF16, anything)
    assert groups(islands) == ["a", "t v"]
    # The smaller memory decides what a plan may count on.
    assert islands[1].gpu.name == T4
    assert islands[1].reasons[0] == "without bf16 arithmetic, so of no use to the job: V100-16GB-SXM2, T4"
    assert islands[0].reasons == ("A100-80GB-SXM differs from T4: the job's precision",)
    assert groups(build_islands(some, Precision.FP16, anything)) == ["a t v"]


def test_vendors_do_not_mix() -> None:
    some = cluster([node("a", A100, 8), node("m", "MI300X", 8)])
    islands = build_islands(some, Precision.BF16, Tolerances(INF, INF, INF, INF))
    assert len(islands) == 2
    assert "AMD against NVIDIA" in islands[0].reasons[0]


def test_links_inside_nodes_tell_nodes_apart() -> None:
    assert islands_of([node("a", A100), node("b", A100, intra=32e9)]) == ["a", "b"]
    assert islands_of([node("a", A100), node("b", A100, intra=280e9)]) == ["a b"]


def test_two_racks_joined_by_a_slow_link() -> None:
    racks = [node(f"{r}{i}", A100, group=r) for r in "xy" for i in range(3)]
    slow = [Link("x", "y", 0.125e9, 1e-5)]
    assert islands_of(racks, slow) == ["x0 x1 x2", "y0 y1 y2"]
    # The paper's rule says nothing here, since nobody is outside.
    assert islands_of(racks, slow, network=INF) == ["x0 x1 x2 y0 y1 y2"]
    # A third part makes x and y each other's distant neighbours.
    third = node("z", V16, nic=50e9)
    assert islands_of([*racks, third], slow, network=INF) == ["x0 x1 x2", "y0 y1 y2", "z"]


def test_reasons_for_network_boundaries() -> None:
    racks = [node(f"{r}{i}", A100, group=r) for r in "xy" for i in range(2)]
    islands = build_islands(cluster(racks, [Link("x", "y", 0.125e9, 1e-5)]), Precision.FP16)
    assert [i.name for i in islands] == [A100, f"{A100}#2"]
    assert islands[0].reasons == (
        f"links to {A100}#2 reach 0.125 GB/s, 100x slower than the 12.5 GB/s inside",
    )


def test_nodes_nearer_to_others_than_to_each_other_stand_alone() -> None:
    nodes = [node("a0", A100, group="a"), node("a1", A100, group="a"), node("t", T4)]
    some = cluster(nodes, [Link("a", "a", 1.25e9, 1e-5)])
    islands = build_islands(some, Precision.FP16)
    assert groups(islands) == ["a0", "a1", "t"]
    assert islands[0].reasons[0] == (
        "its nodes of A100-80GB-SXM stand alone: 1.25 GB/s among them, 12.5 GB/s to others"
    )
    assert islands[0].reasons == islands[1].reasons
    assert [i.name for i in islands] == [A100, f"{A100}#2", T4]


def test_faster_nics_stay_with_faster_nics() -> None:
    nodes = [node(f"s{i}", A100, nic=12.5e9) for i in range(2)] + [
        node(f"f{i}", A100, nic=50e9) for i in range(2)
    ]
    outsider = node("t", T4, nic=50e9)
    assert islands_of([*nodes, outsider], network=INF, default=50e9) == ["f0 f1", "s0 s1", "t"]


def test_an_island_may_be_more_than_its_pairs_suggest() -> None:
    # 1-2 and 2-3 are close, and 4 is equally far from all three. No two of {1, 2}, 3 and 4 form an island
    # together, but all of them do. Node 5 is nearer to the T4, which rules out one island of everything.
    nodes = [node(name, A100) for name in "12345"] + [node("t", T4)]
    rates = {"12": 10e9, "23": 10e9, "13": 1e9, "14": 5e9, "24": 5e9, "34": 5e9, "5t": 2e9}
    links = [Link(pair[0], pair[1], rate, 1e-5) for pair, rate in rates.items()]
    assert islands_of(nodes, links, network=INF, default=0.5e9) == ["1 2 3 4", "5", "t"]


@pytest.mark.parametrize(("near", "far"), [("b", "c"), ("c", "b")])
def test_equal_choices_are_made_by_links_before_names(near: str, far: str) -> None:
    nodes = [node("a", A100), node(near, A100), node(far, A100), node("t", T4)]
    rates = {("a", near): 6e9, ("a", far): 6e9, (near, "t"): 1.2e9, (far, "t"): 0.6e9}
    links = [Link(x, y, rate, 1e-5) for (x, y), rate in rates.items()]
    assert islands_of(nodes, links, default=1e9) == sorted([f"a {near}", far, "t"])


def test_parts_of_a_mixed_host_are_not_each_others_outside() -> None:
    nodes = [
        node(f"{group}{i}", part, 2, nic=1.25e9, host=f"h{i}", group=group)
        for group, part in (("a", A100), ("v", V32))
        for i in range(3)
    ]
    # Inside a host an A100 reaches a V100 at 150 GB/s, and the next A100 only over the network.
    assert islands_of(nodes) == ["a0 a1 a2", "v0 v1 v2"]


def test_unlike_halves_of_one_host_that_are_alike_enough_form_an_island() -> None:
    nodes = [node("a", A100, host="h"), node("b", A100, host="h"), node("t", T4)]
    some = cluster(nodes)
    islands = build_islands(some, Precision.FP16)
    assert groups(islands) == ["a b", "t"]
    assert islands[0].inter_bandwidth_bytes_per_s == 300e9
    assert violations(islands, some, Precision.FP16, Tolerances()) == []


def test_an_island_counts_on_its_worst() -> None:
    slow = dataclasses.replace(
        node("b", A100, nic=10e9), intra_bandwidth_bytes_per_s=290e9, intra_latency_s=9e-6
    )
    some = cluster([node("a", A100, nic=50e9), slow], [Link("a", "b", 11e9, 3e-5)])
    (island,) = build_islands(some, Precision.FP16)
    assert island.intra_bandwidth_bytes_per_s == 290e9
    assert island.intra_latency_s == 9e-6
    assert island.inter_bandwidth_bytes_per_s == 10e9
    assert island.inter_latency_s == 3e-5
    assert island.nic_bandwidth_bytes_per_s == 10e9
    assert island.reasons == ()


def test_violations_see_what_is_wrong() -> None:
    some = cluster([node("a", A100), node("b", V16, 8), node("c", V16)], [Link("b", "c", 1.25e9, 1e-5)])
    islands = build_islands(some, Precision.FP16)
    limits = Tolerances()
    assert violations(islands, some, Precision.FP16, limits) == []

    def complaints(*changed: Island) -> str:
        return "; ".join(violations(changed, some, Precision.FP16, limits))

    whole = dataclasses.replace(islands[0], nodes=some.nodes)
    assert "different numbers of GPUs" in complaints(whole)
    assert "compute between" in complaints(whole)
    assert "memory between" in complaints(whole)
    assert "intra-node bandwidth between" in complaints(whole)
    assert "links between" in complaints(whole)
    assert "node b is in 0 islands" in complaints(*islands[:1], *islands[2:])
    assert "node a is in 2 islands" in complaints(*islands, islands[0])
    assert "islands are called" in complaints(*islands, islands[0])
    assert "not in the cluster" in complaints(
        *islands, dataclasses.replace(islands[0], nodes=(node("z", T4),))
    )
    v100s = dataclasses.replace(islands[1], nodes=some.nodes[1:])
    assert "is linked at 1.25e+09 B/s inside, 1.25e+10 B/s outside" in complaints(v100s)
    assert "NIC is 1, not" in complaints(dataclasses.replace(islands[0], nic_bandwidth_bytes_per_s=1.0))


def test_refusals() -> None:
    with pytest.raises(InputError, match="no nodes"):
        build_islands(cluster([]), Precision.FP16)
    with pytest.raises(InputError, match="2 nodes are called 'a'"):
        build_islands(cluster([node("a", A100), node("a", T4)]), Precision.FP16)
    for wrong in (-0.1, float("nan")):
        for name in ("compute", "memory", "intra", "network"):
            with pytest.raises(InputError, match=f"{name} tolerance"):
                Tolerances(**{name: wrong})


def test_many_islands_have_few_reasons() -> None:
    racks = [node(f"r{r}-{i}", A100, group=f"r{r}", nic=50e9) for r in range(40) for i in range(2)]
    links = [Link(f"r{r}", f"r{r}", 50e9, 5e-6) for r in range(40)]
    islands = build_islands(cluster(racks, links), Precision.FP16)
    assert len(islands) == 40
    assert all(len(i.reasons) == 9 for i in islands)
    assert islands[0].reasons[-1] == "and so on for 31 more islands"


@pytest.mark.parametrize(
    "text",
    [
        "2000x8xH100-80GB-SXM@400Gbit",
        "500x8xH100-80GB-SXM+500x8xA100-80GB-SXM+500x4xT4+500x8xV100-16GB-SXM2@100Gbit",
    ],
)
def test_thousands_of_nodes_are_fast(text: str) -> None:
    some = parse_shorthand(text)
    start = time.perf_counter()
    islands = build_islands(some, Precision.FP16)
    # 10 ms when it was written; the limit only catches a quadratic step.
    assert time.perf_counter() - start < 1.0
    assert sum(i.num_nodes for i in islands) == 2000


@settings(max_examples=150, deadline=None, derandomize=True)
@given(clusters(), precisions)
def test_the_network_between_classes_is_the_clusters(some: Cluster, precision: Precision) -> None:
    classes, network = classify(some, precision)
    assert sorted(n.name for c in classes for n in c.nodes) == sorted(n.name for n in some.nodes)
    for i, a in enumerate(classes):
        for j, b in enumerate(classes):
            pairs = [(m, n) for m in a.nodes for n in b.nodes if m.host != n.host]
            assert network.exists[i, j] == bool(pairs)
            for m, n in pairs:
                assert network.bandwidth_bytes_per_s[i, j] == some.bandwidth_bytes_per_s(m, n)
                assert network.latency_s[i, j] == some.latency_s(m, n)
    assert np.array_equal(network.exists, network.exists.T)
