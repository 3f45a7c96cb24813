from __future__ import annotations

from dataclasses import dataclass

import pytest
from cost_cases import A100, island_of, whole

from tangram.cluster.spec import Portion
from tangram.cost.constants import cluster_constants, stack_constants
from tangram.cost.links import CP, DATA, EP, EXPERT_DATA, EXPERT_TP, TP, Groups, LinkRates
from tangram.cost.types import StageConfig, StageConfigs

CLUSTER, STACK = cluster_constants(), stack_constants()
INTRA = 300e9 * CLUSTER.nvlink_efficiency
NODE = 40e9 * CLUSTER.nic_efficiency


@dataclass(frozen=True)
class Links:
    """Groups and their rates, for one configuration."""

    groups: Groups
    rates: LinkRates

    @staticmethod
    def of(portion: Portion, configs: StageConfigs) -> Links:
        groups = Groups.of(portion, configs)
        return Links(groups, LinkRates.of(groups, STACK, CLUSTER))

    def gather_s(self, group: int, num_bytes: float) -> float:
        remote = self.groups.remote_frac[group, 0] * num_bytes
        return float(self.rates.latency_s[group, 0] + remote * self.rates.seconds_per_byte[group, 0])

    def all_to_all_s(self, num_bytes: float) -> float:
        return float(self.rates.latency_s[EP, 0] + num_bytes * self.rates.all_to_all_s_per_byte[0])


def links_of(config: StageConfig, num_nodes: int = 2) -> Links:
    return Links.of(whole(island_of(num_nodes=num_nodes, nic=40e9)), StageConfigs.of([config]))


def rate(links: Links, group: int) -> float:
    return 1 / float(links.rates.seconds_per_byte[group, 0])


def test_tp_stays_in_the_node_and_dp_crosses_with_its_share_of_the_nics() -> None:
    links = links_of(StageConfig(dp=4, tp=4))
    assert rate(links, TP) == pytest.approx(INTRA)
    # 4 dp groups of 4 ranks, 2 on each of 2 nodes: 4 groups share a node's NICs.
    assert rate(links, DATA) == pytest.approx(NODE / 4)


def test_a_single_dp_group_has_all_nics() -> None:
    assert rate(links_of(StageConfig(dp=16, tp=1)), DATA) == pytest.approx(NODE)


def test_eight_groups_of_one_rank_per_node_share_the_nics() -> None:
    assert rate(links_of(StageConfig(dp=2, tp=8)), DATA) == pytest.approx(NODE / 8)


def test_context_groups_lie_between_tp_and_dp() -> None:
    links = links_of(StageConfig(dp=2, tp=2, cp=4))
    assert rate(links, CP) == pytest.approx(INTRA)
    # dp x cp together: 2 groups of 8 ranks, 4 on a node.
    assert links.groups.size[DATA, 0] == 8
    assert rate(links, DATA) == pytest.approx(NODE / 2)


def test_expert_mesh_reuses_the_same_ranks() -> None:
    links = links_of(StageConfig(dp=8, tp=2, ep=4, expert_tp=2))
    assert [links.groups.size[g, 0] for g in (EP, EXPERT_TP, EXPERT_DATA)] == [4, 2, 2]
    assert rate(links, EP) == pytest.approx(INTRA)
    # Each of the 8 GPUs of a node has its only replica on the other node.
    assert rate(links, EXPERT_DATA) == pytest.approx(NODE / 8)


def test_a_group_that_straddles_nodes_unevenly_counts_its_worst_copy() -> None:
    # 2 groups of 12 on 3 nodes: 8 + 4 and 4 + 8.
    links = links_of(StageConfig(dp=2, tp=1, cp=12), num_nodes=3)
    assert rate(links, CP) == pytest.approx(NODE / 2)
    assert links.groups.cross_node_frac[CP, 0] == pytest.approx(8 / 12)


def test_part_of_a_node_needs_no_network() -> None:
    portion = Portion(island_of(A100, num_nodes=1, nic=1.0), 1, 4)
    links = Links.of(portion, StageConfigs.of([StageConfig(dp=4, tp=1)]))
    assert rate(links, DATA) == pytest.approx(INTRA)


def test_time_of_an_all_gather_by_hand() -> None:
    links = links_of(StageConfig(dp=4, tp=4))
    got = links.gather_s(DATA, 1e9)
    latency = STACK.collective_launch_s + 5e-6 + 10e-6  # one hop inside the node, one between the two
    assert got == pytest.approx(latency + 0.75 * 1e9 / (NODE / 4), rel=1e-12)


def test_a_group_of_one_costs_nothing() -> None:
    links = links_of(StageConfig(dp=16, tp=1))
    assert links.gather_s(TP, 1e12) == 0
    assert links.all_to_all_s(1e12) == 0


def test_time_of_an_all_to_all_by_hand() -> None:
    links = links_of(StageConfig(dp=16, tp=1, ep=16))
    got = links.all_to_all_s(1e9)
    latency = STACK.collective_launch_s + 7 * 5e-6 + 10e-6
    # Half of the bytes of each of 8 GPUs leave the node; 7/16 stay inside it meanwhile, and are faster.
    across = 8 * 0.5 * 1e9 / NODE
    assert across > 7 / 16 * 1e9 / INTRA
    assert got == pytest.approx(latency + across / CLUSTER.all_to_all_efficiency, rel=1e-12)


def test_a_slow_link_between_nodes_limits_fast_nics() -> None:
    island = island_of(nic=400e9, inter_bandwidth_bytes_per_s=10e9)
    links = Links.of(whole(island), StageConfigs.of([StageConfig(dp=16, tp=1)]))
    assert rate(links, DATA) == pytest.approx(10e9 * CLUSTER.nic_efficiency)
