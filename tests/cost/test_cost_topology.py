"""What links cost that are not all alike: pairs, host memory, domains, mixed hosts, lines between sites."""

from __future__ import annotations

from itertools import product
from math import gcd, prod

import numpy as np
import pytest

from tangram.basis import SHIPPED_BASIS
from tangram.cluster.islands import build_islands
from tangram.cluster.readers import cluster_from_yaml
from tangram.cluster.spec import Cluster, Island, Portion
from tangram.cost.configs import legal_configs
from tangram.cost.constants import cluster_constants, stack_constants
from tangram.cost.links import CP, DATA, EP, TP, Groups, LinkRates
from tangram.cost.stage import stage_cost
from tangram.cost.transfer import transfer
from tangram.cost.types import StageConfig, StageConfigs
from tangram.job import Job, Precision
from tangram.model.atoms import cut_atoms
from tangram.model.load import load_model
from tangram.planner.edges import node_edge
from tangram.yaml_reader import parse_yaml

CLUSTER, STACK = cluster_constants(), stack_constants()
PCIE, NVLINK, NIC = CLUSTER.pcie_efficiency, CLUSTER.nvlink_efficiency, CLUSTER.nic_efficiency


def read(text: str) -> Cluster:
    return cluster_from_yaml(parse_yaml(text, "c.yaml"), "c")


def islands(text: str) -> tuple[Island, ...]:
    return build_islands(read(text), Precision.FP16)


def whole(island: Island) -> Portion:
    return Portion(island, island.num_nodes, island.gpus_per_node)


def rates(portion: Portion, config: StageConfig) -> LinkRates:
    return LinkRates.of(Groups.of(portion, StageConfigs.of([config])), STACK, CLUSTER)


def rate(portion: Portion, config: StageConfig, group: int) -> float:
    return 1 / float(rates(portion, config).seconds_per_byte[group, 0])


def forward_s(portion: Portion, config: StageConfig) -> float:
    """Four layers of a small model."""
    model, job = load_model("gpt3-1.3b"), Job(8, 2048, Precision.FP16)
    return stage_cost(model, cut_atoms(model)[1:5], portion, config, 1, 8, 1, (False,) * 4, job).forward_s


PAIRS = "nodes: [{name: a, gpus: 'A40:8', intra: nvlink-pairs}]"


def test_groups_within_a_pair_have_nvlink_and_others_pcie() -> None:
    (island,) = islands(PAIRS)
    portion = whole(island)
    assert rate(portion, StageConfig(dp=4, tp=2), TP) == pytest.approx(56.25e9 * NVLINK)
    # Replicas of a pair's rank are in other pairs.
    assert rate(portion, StageConfig(dp=4, tp=2), DATA) == pytest.approx(32e9 * PCIE)
    assert rate(portion, StageConfig(dp=2, tp=4), TP) == pytest.approx(32e9 * PCIE)
    assert rate(Portion(island, 1, 2), StageConfig(dp=2, tp=1), DATA) == pytest.approx(56.25e9 * NVLINK)
    near = rates(portion, StageConfig(dp=8, tp=1, ep=2)).all_to_all_s_per_byte[0]
    far = rates(portion, StageConfig(dp=8, tp=1, ep=4)).all_to_all_s_per_byte[0]
    assert near == pytest.approx(0.5 / (56.25e9 * NVLINK * CLUSTER.all_to_all_efficiency))
    assert far == pytest.approx(0.75 / (32e9 * PCIE * CLUSTER.all_to_all_efficiency))


def test_latency_is_that_of_the_link_in_use() -> None:
    (island,) = islands(PAIRS)
    latency = rates(whole(island), StageConfig(dp=4, tp=2)).latency_s
    assert latency[TP, 0] == pytest.approx(5e-6 + STACK.collective_launch_s)
    assert latency[DATA, 0] == pytest.approx(3 * 8e-6 + STACK.collective_launch_s)


def test_a_bridge_over_four_holds_groups_of_two_and_four() -> None:
    (island,) = islands(
        "nodes: [{name: a, gpus: 'A40:8', intra: "
        "{link: pcie, bridge: 100GB/s, groups: [[0, 1, 2, 3], [4, 5, 6, 7]]}}]"
    )
    for dp, tp in ((4, 2), (2, 4)):
        assert rate(whole(island), StageConfig(dp=dp, tp=tp), TP) == pytest.approx(100e9 * NVLINK)
    assert rate(whole(island), StageConfig(dp=1, tp=8), TP) == pytest.approx(32e9 * PCIE)
    # Two replicas of tp 2 are two bridged GPUs apart, and inside one bridge.
    assert rate(Portion(island, 1, 4), StageConfig(dp=2, tp=2), DATA) == pytest.approx(100e9 * NVLINK)


def test_cards_without_peer_access_go_through_host_memory() -> None:
    (geforce,) = islands("nodes: [{name: a, gpus: 'RTX-4090:4'}]")
    (patched,) = islands("nodes: [{name: a, gpus: 'RTX-4090:4', intra: 32GB/s}]")
    config = StageConfig(dp=1, tp=4)
    slow, fast = rate(whole(geforce), config, TP), rate(whole(patched), config, TP)
    # 18 against 22 GB/s of bus bandwidth in NCCL's all-reduce over four cards (NVIDIA/nccl#1603).
    assert slow / fast == pytest.approx(18 / 22, rel=0.03)
    assert rates(whole(geforce), config).latency_s[TP, 0] > rates(whole(patched), config).latency_s[TP, 0]


def test_tensor_parallel_pairs_gain_by_bridges() -> None:
    bare = islands("nodes: [{name: a, gpus: 'RTX-3090:4', intra: pcie}]")[0]
    paired = islands("nodes: [{name: a, gpus: 'RTX-3090:4', intra: nvlink-pairs}]")[0]
    two, four = StageConfig(dp=1, tp=2), StageConfig(dp=1, tp=4)
    assert forward_s(Portion(bare, 1, 2), two) > 1.1 * forward_s(Portion(paired, 1, 2), two)
    assert forward_s(whole(bare), four) == forward_s(whole(paired), four)


RACKS = (
    "nodes: [{name: rack, count: 36, gpu: GB200, gpus: 4, nics: 400Gbit x4}]\nnetwork: {default: 1600Gbit}"
)


def test_a_domain_is_one_node_to_collectives() -> None:
    island = islands(RACKS)[0]
    portion = Portion(island, 4, 4)
    inside = 900e9 * NVLINK
    for group, config in (
        (TP, StageConfig(dp=2, tp=8)),
        (DATA, StageConfig(dp=16, tp=1)),
        (EP, StageConfig(dp=16, tp=1, ep=16)),
    ):
        assert rate(portion, config, group) == pytest.approx(inside)
    job = Job(64, 2048, Precision.BF16)
    degrees = {config.tp for config in legal_configs(load_model("gpt3-13b"), portion, 16, job)}
    assert degrees == {1, 2, 4, 8}
    apart = islands(RACKS.replace("gpus: 4", "gpus: 4, domain: none"))[0]
    assert {c.tp for c in legal_configs(load_model("gpt3-13b"), Portion(apart, 4, 4), 16, job)} == {1, 2, 4}


def test_transfers_within_a_domain_take_no_nic() -> None:
    cluster = read(RACKS)
    first = [node for node in cluster.nodes if node.domain == "rack/0"]
    other = [node for node in cluster.nodes if node.domain == "rack/1"]
    within = transfer(cluster, first[:2], first[2:4], 1e9, lanes=4)
    assert within.occupancy_s == pytest.approx(1e9 / (2 * 4 * 900e9 * NVLINK))
    assert not node_edge(cluster, first[:2], first[2:4], 10**9, 4, SHIPPED_BASIS).forward_resources
    between = transfer(cluster, first[:2], other[:2], 1e9, lanes=4)
    assert between.occupancy_s == pytest.approx(1e9 / (2 * 200e9 * NIC))
    assert len(node_edge(cluster, first[:2], other[:2], 10**9, 4, SHIPPED_BASIS).forward_resources) == 4


def test_parts_of_a_mixed_host_share_its_nics() -> None:
    mixed = "nodes: [{name: box, count: 2, gpus: [A40:2, L4:6], nics: 80Gbit}]"
    alone = "nodes: [{name: box, count: 2, gpus: 'A40:2', nics: 80Gbit}]"
    config = StageConfig(dp=4, tp=1)
    ours = next(island for island in islands(mixed) if island.gpu.name == "A40")
    assert rate(whole(ours), config, DATA) == pytest.approx(10e9 * NIC * 2 / 8)
    assert rate(whole(islands(alone)[0]), config, DATA) == pytest.approx(10e9 * NIC)


def test_several_nics_carry_the_traffic_of_a_node_together() -> None:
    nodes = "nodes: [{{name: a, count: 2, gpus: 'A100-80GB-SXM:8', nics: {}}}]\nnetwork: {{default: 800Gbit}}"
    one, four, listed = (
        rate(whole(islands(nodes.format(nics))[0]), StageConfig(dp=2, tp=8), DATA)
        for nics in ("100Gbit", "100Gbit x4", "[100Gbit x2, 200Gbit]")
    )
    assert four == pytest.approx(4 * one)
    assert listed == pytest.approx(four)


def test_tensor_parallelism_across_nodes_pays_for_the_network() -> None:
    near = islands("nodes: [{name: a, gpus: 'RTX-4090:2'}]")[0]
    far = islands(
        "nodes: [{name: a, count: 2, gpus: 'RTX-4090:1', nics: 10Gbit}]\nnetwork: {default: 10Gbit}"
    )[0]
    config = StageConfig(dp=1, tp=2)
    assert forward_s(whole(far), config) > 4 * forward_s(whole(near), config)


SITES = """\
nodes: [{name: east, count: 4, gpus: 'A100-80GB-SXM:8'}, {name: west, count: 4, gpus: 'V100-32GB-SXM2:8'}]
network: {default: 100Gbit, links: [{between: [west, east], bandwidth: 1Gbit, latency: 10ms%s}]}
"""


def test_a_shared_line_counts_once_however_many_nodes_talk() -> None:
    for words, nodes in (("", 4), (", shared: true", 1)):
        cluster = read(SITES % words)
        east, west = cluster.nodes[:4], cluster.nodes[4:]
        moved = transfer(cluster, east, west, 1e9)
        assert moved.occupancy_s == pytest.approx(1e9 / (nodes * 0.125e9 * NIC))
        edge = node_edge(cluster, east, west, 10**9, 8, SHIPPED_BASIS)
        lines = [name for name in edge.forward_resources if "~" in name]
        assert lines == (["west~east:back"] if words else [])
        assert [name for name in edge.backward_resources if "~" in name] == (
            ["west~east:there"] if words else []
        )
        assert not any(
            "~" in name
            for name in node_edge(cluster, east[:2], east[2:], 10**9, 8, SHIPPED_BASIS).forward_resources
        )


def ranks_of(group: int, dp: int, cp: int, tp: int) -> list[list[int]]:
    """All groups of one kind, written down rank by rank: row-major over (dp, cp, tp)."""
    mesh = np.arange(dp * cp * tp).reshape(dp, cp, tp)
    axes = {TP: (0, 1), CP: (0, 2), DATA: (2,)}[group]
    kept = [axis for axis in range(3) if axis not in axes]
    moved = np.transpose(mesh, (*axes, *kept))
    rows: list[list[int]] = moved.reshape(prod(mesh.shape[axis] for axis in axes), -1).tolist()
    return rows


@pytest.mark.parametrize(("size", "joined"), [(4, 2), (8, 2), (8, 4), (12, 2), (12, 4)])
def test_groups_in_a_bridge_are_found_as_by_hand(size: int, joined: int) -> None:
    groups = [list(range(first, first + joined)) for first in range(0, size, joined)]
    intra = f"{{link: pcie, bridge: nvlink, groups: {groups}}}"
    (island,) = islands(f"nodes: [{{name: a, gpus: 'A40:{size}', intra: {intra}}}]")
    for taken in (g for g in range(1, size + 1) if size % g == 0):
        # Placement begins at multiples of what the stage and a bridge have in common.
        starts = range(0, size - taken + 1, gcd(taken, joined))
        for dp, cp, tp in product(range(1, taken + 1), repeat=3):
            if dp * cp * tp != taken:
                continue
            config = StageConfigs.of([StageConfig(dp=dp, cp=cp, tp=tp)])
            found = Groups.of(Portion(island, 1, taken), config).in_bridge
            for group, ranks_in_it in ((TP, tp), (CP, cp), (DATA, dp * cp)):
                if ranks_in_it == 1:
                    continue
                within = all(
                    len({(start + rank) // joined for rank in ranks}) == 1
                    for start in starts
                    for ranks in ranks_of(group, dp, cp, tp)
                )
                assert bool(np.asarray(found)[group, 0]) is within, (taken, dp, cp, tp, group)
