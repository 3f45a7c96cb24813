from __future__ import annotations

from dataclasses import replace

import pytest
from cost_cases import A100, MODELS, dense_layer, island_of, job_of, model_of, moe_layer, two_sides
from hypothesis import given
from hypothesis import strategies as st

from tangram.cluster.spec import Cluster, Link, Node, Portion
from tangram.cost.constants import cluster_constants
from tangram.cost.transfer import boundary_bytes, tied_sync_s, transfer
from tangram.job import Precision
from tangram.model.atoms import cut_atoms, parse_granularity

CONSTANTS = cluster_constants()
NIC, NVLINK = CONSTANTS.nic_efficiency, CONSTANTS.nvlink_efficiency


def test_residual_stream_between_layers() -> None:
    model = MODELS[0]
    for atom in cut_atoms(model)[:-1]:
        assert boundary_bytes(model, atom, 4, job_of(seq_len=512)) == 4 * 512 * 1024 * 2
    assert (
        boundary_bytes(model, cut_atoms(model)[0], 4, job_of(Precision.FP32, seq_len=512))
        == 4 * 512 * 1024 * 4
    )
    assert boundary_bytes(model, cut_atoms(model)[-1], 4, job_of()) == 0


def test_tensors_inside_a_block_cross_too() -> None:
    model = model_of(dense_layer(gated=True, kv_heads=4, ffn=2816), moe_layer())
    atoms = cut_atoms(model, parse_granularity("operator"))
    per_token = [boundary_bytes(model, a, 1, job_of(seq_len=1)) / 2 for a in atoms]
    dense = [1024 + 1024 + 2 * 512, 1024 + 1024, 1024, 1024 + 2 * 2816, 1024]
    moe = [1024 + 3 * 1024, 1024 + 1024, 1024, 1024]
    assert per_token == [1024, *dense, *moe, 0]


def test_between_two_single_nodes() -> None:
    cluster = two_sides(bandwidth=12.5e9)
    a, b = cluster.nodes[:1], cluster.nodes[1:2]
    got = transfer(cluster, a, b, 1e9)
    assert (got.latency_s, got.occupancy_s) == pytest.approx((20e-6, 1e9 / (12.5e9 * NIC)))
    assert got.total_s == got.latency_s + got.occupancy_s


def test_several_nodes_send_at_once() -> None:
    cluster = two_sides(bandwidth=10e9, nodes=(2, 2), a=25e9, b=25e9)
    assert transfer(cluster, cluster.nodes[:2], cluster.nodes[2:], 1e9).occupancy_s == pytest.approx(
        1e9 / (20e9 * NIC)
    )
    assert transfer(cluster, cluster.nodes[:2], cluster.nodes[2:3], 1e9).occupancy_s == pytest.approx(
        1e9 / (10e9 * NIC)
    )


def test_nics_of_the_smaller_side_limit() -> None:
    cluster = two_sides(bandwidth=100e9, nodes=(1, 2), a=25e9, b=5e9)
    assert transfer(cluster, cluster.nodes[:1], cluster.nodes[1:2], 1e9).occupancy_s == pytest.approx(
        1e9 / (5e9 * NIC)
    )


def test_a_link_of_its_own_is_slower() -> None:
    cluster = two_sides()
    got = transfer(cluster, cluster.nodes[1:2], cluster.nodes[2:3], 1e9)
    assert (got.latency_s, got.occupancy_s) == pytest.approx((50e-6, 1e9 / (1e9 * NIC)))


def test_the_slowest_pair_counts() -> None:
    cluster = two_sides(bandwidth=10e9, nodes=(1, 2), a=25e9, b=25e9)
    slow = replace(cluster, links=(Link("a0", "b1", 2e9, 90e-6),))
    got = transfer(slow, cluster.nodes[:1], cluster.nodes[1:], 1e9)
    assert (got.latency_s, got.occupancy_s) == pytest.approx((90e-6, 1e9 / (2e9 * NIC)))


def test_inside_one_node() -> None:
    cluster = two_sides()
    node = cluster.nodes[:1]
    assert transfer(cluster, node, node, 1e9).occupancy_s == pytest.approx(1e9 / (300e9 * NVLINK))
    got = transfer(cluster, node, node, 1e9, lanes=4)
    assert (got.latency_s, got.occupancy_s) == pytest.approx((5e-6, 1e9 / (4 * 300e9 * NVLINK)))


def test_parts_of_a_mixed_host_talk_inside_it() -> None:
    cluster = two_sides()
    a, b = (
        cluster.nodes[0],
        replace(cluster.nodes[1], host="a0", intra_kind="pcie", intra_bandwidth_bytes_per_s=16e9),
    )
    mixed = replace(cluster, nodes=(a, b))
    got = transfer(mixed, [a], [b], 1e9, lanes=2)
    assert (got.latency_s, got.occupancy_s) == pytest.approx(
        (6e-6, 1e9 / (2 * 16e9 * CONSTANTS.pcie_efficiency))
    )


def test_mixed_hosts_count_their_nics_once() -> None:
    def part(name: str, host: str) -> Node:
        return Node(name, A100, 4, 300e9, 5e-6, "nvlink", 10e9, host, "mixed")

    nodes = (part("h0-a", "h0"), part("h0-b", "h0"), part("h1-a", "h1"), part("h1-b", "h1"))
    cluster = Cluster("mixed", nodes, 100e9, 20e-6)
    one_host = transfer(cluster, nodes[:2], nodes[2:], 1e9)
    assert one_host.occupancy_s == pytest.approx(1e9 / (10e9 * NIC))
    crossed = transfer(cluster, [nodes[0], nodes[2]], [nodes[1], nodes[3]], 1e9)
    assert crossed.occupancy_s == pytest.approx(1e9 / (20e9 * NIC))


def test_portions_of_one_island_share_a_node_when_they_fit() -> None:
    island = island_of(num_nodes=2, nic=20e9)
    cluster = Cluster("c", island.nodes, 50e9, 30e-6)
    half, node = Portion(island, 1, 4), Portion(island, 1, 8)
    inside = transfer(cluster, half, half, 1e9)
    assert inside.occupancy_s == pytest.approx(1e9 / (4 * 300e9 * NVLINK))
    outside = transfer(cluster, half, node, 1e9)
    assert (outside.latency_s, outside.occupancy_s) == pytest.approx((30e-6, 1e9 / (20e9 * NIC)))
    assert transfer(cluster, node, Portion(island, 2, 8), 1e9).occupancy_s == outside.occupancy_s


def test_portions_of_two_islands() -> None:
    cluster = two_sides(bandwidth=50e9, nodes=(2, 2), a=10e9, b=10e9)
    left = replace(island_of(num_nodes=2), name="left", nodes=cluster.nodes[:2])
    right = replace(island_of(num_nodes=2), name="right", nodes=cluster.nodes[2:])
    got = transfer(cluster, Portion(left, 2, 8), Portion(right, 2, 8), 1e9)
    assert got.occupancy_s == pytest.approx(1e9 / (20e9 * NIC))


def test_a_tied_matrix_crosses_once_each_way() -> None:
    cluster = two_sides(bandwidth=12.5e9)
    got = tied_sync_s(cluster, cluster.nodes[:1], cluster.nodes[1:2], 1e9)
    assert got == pytest.approx(2 * 20e-6 + 1e9 / (12.5e9 * NIC))


@given(st.floats(1e8, 1e11), st.floats(1.0, 50.0), st.integers(1, 3), st.integers(1, 3))
def test_a_faster_network_is_never_slower(bandwidth: float, factor: float, left: int, right: int) -> None:
    slow, fast = two_sides(bandwidth, (left, right)), two_sides(bandwidth * factor, (left, right))
    before = transfer(slow, slow.nodes[:left], slow.nodes[left:], 1e8)
    after = transfer(fast, fast.nodes[:left], fast.nodes[left:], 1e8)
    assert after.total_s <= before.total_s
    better = two_sides(bandwidth, (left, right), a=25e9 * factor, b=12.5e9 * factor)
    assert transfer(better, better.nodes[:left], better.nodes[left:], 1e8).total_s <= before.total_s


def test_large_stages_are_cheap_to_ask_about() -> None:
    cluster = two_sides(nodes=(500, 500))
    got = transfer(cluster, cluster.nodes[:500], cluster.nodes[500:], 1e9)
    assert got.occupancy_s == pytest.approx(1e9 / (500 * 12.5e9 * NIC))
