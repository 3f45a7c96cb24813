"""Nodes of equal size: every GPU is in one part, and parts of a node stay on its host."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tangram.baselines.nodes import NodePart, divided, equal_parts
from tangram.cluster.spec import Bridge, Cluster, Slot
from tangram.testing.cases import small_cluster


def cluster_of(*sizes: int) -> Cluster:
    """Nodes of these sizes."""
    like = small_cluster().nodes[0]
    nodes = tuple(
        replace(like, name=f"n{idx}", host=f"n{idx}", num_gpus=size) for idx, size in enumerate(sizes)
    )
    return replace(small_cluster(), nodes=nodes)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_parts_are_equal_and_hold_every_gpu_once(sizes: list[int]) -> None:
    cluster = cluster_of(*sizes)
    parts = equal_parts(cluster)
    held = sorted((slot.node.name, slot.gpu_idx) for part in parts for slot in part.slots)
    assert held == sorted((node.name, idx) for node in cluster.nodes for idx in range(node.num_gpus))
    assert len({part.part.num_gpus for part in parts}) == 1
    assert len({part.part.name for part in parts}) == len(parts)


def test_the_papers_third_cluster_becomes_four_nodes_of_four() -> None:
    cluster = cluster_of(4, 8, 4)
    parts = equal_parts(cluster)
    assert [part.part.name for part in parts] == ["n0", "n1/0", "n1/1", "n2"]
    assert parts[2].slot(1) == Slot(cluster.nodes[1], 5)
    a, b, c, _ = divided(cluster).nodes
    assert divided(cluster).bandwidth_bytes_per_s(b, c) == b.intra_bandwidth_bytes_per_s
    assert divided(cluster).bandwidth_bytes_per_s(a, b) == cluster.bandwidth_bytes_per_s(*cluster.nodes[:2])


def test_equal_nodes_stay_as_they_are() -> None:
    cluster = cluster_of(4, 4)
    assert divided(cluster) == cluster


def test_parts_keep_bridges_that_lie_within_them() -> None:
    """Bridged GPUs need not follow each other; the GPUs of a part are taken bridge by bridge."""

    def parts_of(groups: tuple[tuple[int, ...], ...], *sizes: int) -> list[NodePart]:
        plain = cluster_of(*sizes)
        bridge = Bridge(groups, "nvlink", 3e11, 5e-6)
        first = replace(plain.nodes[0], bridge=bridge)
        return list(equal_parts(replace(plain, nodes=(first, *plain.nodes[1:]))))

    pairs = ((0, 4), (1, 5), (2, 6), (3, 7))
    first, second, _ = parts_of(pairs, 8, 4)
    assert [slot.gpu_idx for slot in (*first.slots, *second.slots)] == [0, 4, 1, 5, 2, 6, 3, 7]
    assert first.part.bridge is not None
    assert first.part.bridge.groups == ((0, 1), (2, 3))
    assert [p.part.bridge and p.part.bridge.groups for p in parts_of(pairs, 8, 2)][:4] == [((0, 1),)] * 4
    # Three of six are a bridge and a half.
    assert parts_of(((0, 1), (2, 3), (4, 5)), 6, 3)[0].part.bridge is None
