"""Properties of islands on random clusters: sound, maximal, and independent of order and names."""

from __future__ import annotations

import dataclasses
from itertools import combinations

from cluster_strategies import cluster, clusters, node, precisions, renamed, slower, tolerances
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.cluster import catalog
from tangram.cluster.classes import classify
from tangram.cluster.islands import Tolerances, build_islands, violations
from tangram.cluster.spec import Cluster, Island
from tangram.job import Precision

# The same examples every time: where only names are left to choose by, another name may choose another way.
MANY = settings(max_examples=250, deadline=None, derandomize=True)
SOME = settings(max_examples=60, deadline=None, derandomize=True)


@MANY
@given(clusters(), precisions, tolerances)
def test_islands_partition_the_nodes_and_satisfy_their_definition(
    some: Cluster, precision: Precision, limits: Tolerances
) -> None:
    islands = build_islands(some, precision, limits)
    assert violations(islands, some, precision, limits) == []
    assert sum(island.num_gpus for island in islands) == some.num_gpus


@MANY
@given(clusters(), precisions, tolerances)
def test_no_two_islands_can_be_joined(some: Cluster, precision: Precision, limits: Tolerances) -> None:
    islands = build_islands(some, precision, limits)
    apart = _nodes_of_divided_classes(some, islands, precision)
    for a, b in combinations(islands, 2):
        # Nodes that nothing tells apart are treated alike, so such a node alone is joined by all or by none.
        if apart.intersection(n.name for n in (*a.nodes, *b.nodes)):
            continue
        joined = dataclasses.replace(a, nodes=a.nodes + b.nodes)
        complaints = violations([joined], some, precision, limits)
        assert any("linked" in c or "beyond" in c or "different" in c for c in complaints)


def _nodes_of_divided_classes(some: Cluster, islands: tuple[Island, ...], precision: Precision) -> set[str]:
    home = {n.name: island.name for island in islands for n in island.nodes}
    classes, _ = classify(some, precision)
    return {
        n.name
        for node_class in classes
        if len({home[n.name] for n in node_class.nodes}) > 1
        for n in node_class.nodes
    }


@MANY
@given(clusters(), precisions, tolerances, st.randoms(use_true_random=False))
def test_order_of_nodes_and_links_changes_nothing(
    some: Cluster, precision: Precision, limits: Tolerances, random: object
) -> None:
    nodes, links = list(some.nodes), list(some.links)
    random.shuffle(nodes)  # type: ignore[attr-defined]
    random.shuffle(links)  # type: ignore[attr-defined]
    links = [dataclasses.replace(link, a=link.b, b=link.a) for link in links]
    shuffled = dataclasses.replace(some, nodes=tuple(nodes), links=tuple(links))
    assert build_islands(shuffled, precision, limits) == build_islands(some, precision, limits)


@MANY
@given(clusters(), precisions, tolerances, st.randoms(use_true_random=False))
def test_names_change_nothing_but_names(
    some: Cluster, precision: Precision, limits: Tolerances, random: object
) -> None:
    old = sorted({n.name for n in some.nodes} | {n.group for n in some.nodes})
    new = [f"x{idx:02}" for idx in range(len(old))]
    random.shuffle(new)  # type: ignore[attr-defined]
    before = build_islands(some, precision, limits)
    after = build_islands(renamed(some, dict(zip(old, new, strict=True))), precision, limits)
    assert [_shape(island) for island in before] == [_shape(island) for island in after]


def _shape(island: Island) -> tuple[object, ...]:
    """Everything of an island but the names of its nodes and what quotes them."""
    fields = [f.name for f in dataclasses.fields(Island) if f.name not in ("nodes", "reasons")]
    values = tuple(getattr(island, field) for field in fields)
    return values, island.num_nodes, sorted(n.gpu.name for n in island.nodes)


@SOME
@given(st.lists(st.sampled_from((1.0, 0.97, 0.94, 0.9, 0.8, 0.5)), min_size=1, max_size=8))
def test_wider_tolerances_never_make_more_islands_of_nodes_that_differ_in_speed_alone(
    factors: list[float],
) -> None:
    part = catalog.gpu("A100-80GB-SXM")
    nodes = [
        node(f"n{idx}", dataclasses.replace(slower(part, f), usable_memory_bytes=part.usable_memory_bytes))
        for idx, f in enumerate(factors)
    ]
    counts = [
        len(build_islands(cluster(nodes), Precision.BF16, Tolerances(compute=limit)))
        for limit in (0.0, 0.02, 0.05, 0.1, 0.3, 1.0, float("inf"))
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == len(set(factors))
    assert counts[-1] == 1


@SOME
@given(clusters(), precisions)
def test_without_tolerance_all_nodes_of_an_island_are_equal(some: Cluster, precision: Precision) -> None:
    for island in build_islands(some, precision, Tolerances(0.0, 0.0, 0.0, 0.0)):
        assert len({n.gpu.achieved_flop_per_s.get(precision) for n in island.nodes}) == 1
        assert len({n.gpu.usable_memory_bytes for n in island.nodes}) == 1
        assert len({n.intra_bandwidth_bytes_per_s for n in island.nodes}) == 1


@SOME
@given(clusters(), precisions, tolerances)
def test_every_boundary_has_a_reason(some: Cluster, precision: Precision, limits: Tolerances) -> None:
    islands = build_islands(some, precision, limits)
    for island in islands:
        assert len(island.reasons) == len(set(island.reasons))
        assert bool(island.reasons) == (len(islands) > 1 or not island.gpu.supports(precision))
