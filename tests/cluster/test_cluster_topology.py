"""What joins GPUs and nodes, in the forms that a cluster file has for it: pairs, matrices, domains, lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.cluster.file_intra import fastest_groups
from tangram.cluster.islands import build_islands, violations
from tangram.cluster.readers import cluster_from_yaml
from tangram.cluster.serial import cluster_from_dict, cluster_to_dict, fingerprint
from tangram.cluster.shorthand import parse_shorthand
from tangram.cluster.spec import Bridge, Cluster, Island
from tangram.cluster.tolerances import Tolerances
from tangram.job import Precision
from tangram.plan.schema_cluster import ClusterSection
from tangram.yaml_reader import parse_yaml


def read(text: str) -> Cluster:
    return cluster_from_yaml(parse_yaml(text, "c.yaml"), "c")


def test_the_examples_of_the_page_are_read() -> None:
    page = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text(encoding="utf-8")
    first, *networks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    nodes = first[: first.index("network:")]
    assert len(networks) == 2
    for text in (first, *(nodes + network for network in networks)):
        assert islands(read(text))


def islands(cluster: Cluster, tolerances: Tolerances | None = None) -> tuple[Island, ...]:
    """Builds islands, and has them checked node by node."""
    found = build_islands(cluster, Precision.FP16, tolerances)
    assert not violations(found, cluster, Precision.FP16, tolerances or Tolerances())
    return found


def test_nvlink_pairs_are_a_bridge_over_pcie() -> None:
    (node,) = read("nodes: [{name: a, gpus: 'A40:4', intra: nvlink-pairs}]").nodes
    assert (node.intra_kind, node.intra_bandwidth_bytes_per_s) == ("pcie", 32e9)
    assert node.bridge == Bridge(((0, 1), (2, 3)), "nvlink", 56.25e9, 5e-6)
    assert node.gpu_order == (0, 1, 2, 3)


def test_bridges_may_join_any_equal_groups() -> None:
    text = "{link: 20GB/s, bridge: 60GB/s, groups: [[0, 2], [1, 3]], latency: 9us}"
    (node,) = read(f"nodes: [{{name: a, gpu: RTX-3090, gpus: 4, intra: {text}}}]").nodes
    assert node.intra_bandwidth_bytes_per_s == 20e9
    assert node.intra_latency_s == 9e-6
    assert node.bridge is not None
    assert (node.bridge.groups, node.bridge.bandwidth_bytes_per_s) == (((0, 2), (1, 3)), 60e9)
    assert node.gpu_order == (0, 2, 1, 3)


def test_a_measured_matrix_shows_rate_and_pairs() -> None:
    matrix = "[[900, 13, 52, 12], [13, 900, 12, 51], [52, 12, 900, 14], [12, 50, 13, 900]]"
    (node,) = read(
        f"nodes: [{{name: a, gpu: RTX-3090, gpus: 4, intra: {{matrix: {matrix}, unit: GB/s}}}}]"
    ).nodes
    assert (node.intra_kind, node.intra_bandwidth_bytes_per_s) == ("pcie", 12e9)
    # The slower direction counts: 50, not 51.
    assert node.bridge == Bridge(((0, 2), (1, 3)), "nvlink", 50e9, 5e-6)


def blocks(sizes: list[int], inside: float, outside: float) -> tuple[tuple[float, ...], ...]:
    home = [idx for idx, size in enumerate(sizes) for _ in range(size)]
    return tuple(tuple(inside if a == b else outside for b in home) for a in home)


@pytest.mark.parametrize(
    ("sizes", "inside", "size"),
    [
        ([2, 2], 30.0, 2),
        ([4, 4], 30.0, 4),
        ([2, 2, 2, 2], 15.0, 2),
        ([2, 2], 14.9, None),  # no faster by half as much again
        ([2, 3], 30.0, None),  # unequal
        ([3, 3], 30.0, None),  # no bridge joins three
        ([4], 30.0, None),  # all of them: no groups
    ],
)
def test_groups_are_equal_and_clearly_faster(sizes: list[int], inside: float, size: int | None) -> None:
    found = fastest_groups(blocks(sizes, inside, 10.0))
    assert (None if found is None else len(found[0][0])) == size


def divisions(left: tuple[int, ...], size: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All ways to divide GPUs into groups of a size."""
    if not left:
        yield ()
        return
    for others in combinations(left[1:], size - 1):
        group = (left[0], *others)
        rest = tuple(gpu for gpu in left if gpu not in group)
        yield from ((group, *more) for more in divisions(rest, size))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([2, 4, 6, 8]), st.data())
def test_the_fastest_groups_are_those_of_brute_force(size: int, data: st.DataObject) -> None:
    """Mostly nearly divided matrices, so that both answers are frequent."""
    width = data.draw(st.sampled_from([2, 4]))
    order = data.draw(st.permutations(range(size)))
    rates = st.sampled_from((10.0, 11.0)), st.sampled_from((16.0, 17.0, 30.0)), st.sampled_from((10.0, 30.0))
    matrix = [[0.0] * size for _ in range(size)]
    for i, j in combinations(range(size), 2):
        near = order[i] // width == order[j] // width
        odd = data.draw(st.integers(0, 30)) == 0
        matrix[i][j] = matrix[j][i] = data.draw(rates[2 if odd else int(near)])
    every = [matrix[i][j] for i, j in combinations(range(size), 2)]
    best = 0.0
    for joined in (2, 4):
        for groups in divisions(tuple(range(size)), joined) if joined < size and size % joined == 0 else ():
            within = [matrix[i][j] for group in groups for i, j in combinations(group, 2)]
            home = {gpu: idx for idx, group in enumerate(groups) for gpu in group}
            across = [matrix[i][j] for i, j in combinations(range(size), 2) if home[i] != home[j]]
            if min(within) > max(across) and min(within) >= 1.5 * min(every):
                best = max(best, min(within))
    found = fastest_groups(tuple(tuple(row) for row in matrix))
    assert (found[1] if found else 0.0) == best
    if found:
        assert all(matrix[i][j] >= best for group in found[0] for i, j in combinations(group, 2))


def test_a_chain_of_fast_links_is_no_group() -> None:
    # 0-1, 1-2, 2-3, 3-0: every GPU has two fast links, as in groups of three, which four GPUs do not make.
    ring = tuple(tuple(30.0 if (a - b) % 4 in (1, 3) else 10.0 for b in range(4)) for a in range(4))
    assert fastest_groups(ring) is None


def test_nodes_with_and_without_bridges_are_apart() -> None:
    text = "nodes: [{name: a, gpus: 'A40:4', intra: nvlink-pairs}, {name: b, gpus: 'A40:4', intra: pcie}]"
    cluster = read(text)
    first, second = islands(cluster)
    assert {island.bridge is None for island in (first, second)} == {True, False}
    assert any("bridges over" in reason for reason in first.reasons + second.reasons)
    (together,) = islands(read(text.replace("intra: pcie", "intra: nvlink-pairs")))
    assert together.bridge is not None


def test_a_slower_bridge_is_another_island_or_sets_the_rate() -> None:
    def cluster(rate: int) -> Cluster:
        inside = f"{{link: pcie, bridge: {rate}GB/s}}"
        return read(
            f"nodes: [{{name: a, gpus: 'A40:4', intra: nvlink-pairs}}, "
            f"{{name: b, gpus: 'A40:4', intra: {inside}}}]"
        )

    assert len(islands(cluster(45))) == 2
    (island,) = islands(cluster(54))
    assert island.bridge is not None
    assert island.bridge.bandwidth_bytes_per_s == 54e9


def test_a_mixed_host_is_one_entry() -> None:
    cluster = read(
        "nodes:\n  - {name: box, count: 2, gpus: [RTX-3090:2, RTX-4090:6], nics: [10Gbit, 25Gbit x2]}\n"
        "network: {default: 50Gbit, links: [{between: [box-0, box-1], bandwidth: 10Gbit}]}\n"
    )
    names = ["box-0.rtx-3090", "box-1.rtx-3090", "box-0.rtx-4090", "box-1.rtx-4090"]
    assert [node.name for node in cluster.nodes] == names
    assert [node.host for node in cluster.nodes] == ["box-0", "box-1", "box-0", "box-1"]
    assert {node.group for node in cluster.nodes} == {"box"}
    assert {node.nic_bandwidth_bytes_per_s for node in cluster.nodes} == {7.5e9}
    assert [node.nic_share_frac for node in cluster.nodes] == [0.25, 0.25, 0.75, 0.75]
    # The link between the hosts is one between all of their nodes.
    by_name = {node.name: node for node in cluster.nodes}
    for a in ("box-0.rtx-3090", "box-0.rtx-4090"):
        for b in ("box-1.rtx-3090", "box-1.rtx-4090"):
            assert cluster.bandwidth_bytes_per_s(by_name[a], by_name[b]) == 1.25e9
    assert len(islands(cluster)) == 2


SITES = """\
nodes: [{name: a, gpus: [A40:4, L4:2]}, {name: b, gpus: 'T4:1'}]
network: {links: [{between: [a, b], bandwidth: 1Gbit, shared: true}]}
"""
RACKS = (
    "nodes: [{name: rack, count: 36, gpu: GB200, gpus: 4, nics: 400Gbit x4}]\nnetwork: {default: 1600Gbit}"
)


def test_racks_are_domains_of_eighteen_trays() -> None:
    cluster = read(RACKS)
    assert {node.domain for node in cluster.nodes} == {"rack/0", "rack/1"}
    assert any("GB200 comes in domains of 72 GPUs" in a.why for a in cluster.assumptions)
    first, second = islands(cluster)
    assert (first.num_nodes, first.is_domain, first.joined_gpus) == (18, True, 72)
    assert "slower than" in first.reasons[0]
    assert second.num_gpus == 72
    a, b = first.nodes[:2]
    assert cluster.bandwidth_bytes_per_s(a, b) == 4 * a.intra_bandwidth_bytes_per_s
    assert cluster.latency_s(a, b) == a.intra_latency_s
    assert cluster.bandwidth_bytes_per_s(a, second.nodes[0]) == 200e9


def test_domains_can_be_stated_or_denied() -> None:
    def domains(words: str) -> list[str | None]:
        return [n.domain for n in read(RACKS.replace("gpus: 4", f"gpus: 4, domain: {words}")).nodes]

    assert domains("none") == [None] * 36
    assert domains("9")[8:10] == ["rack/0", "rack/1"]
    assert domains("one") == ["one"] * 36
    two = "nodes: [{name: a, gpus: 'GB200:4', domain: d}, {name: b, gpus: 'GB200:4', domain: d}]"
    (island,) = islands(read(two))
    assert island.is_domain


def test_two_domains_in_one_island_are_none() -> None:
    (island,) = islands(read(RACKS), Tolerances(network=float("inf")))
    assert (island.num_nodes, island.is_domain, island.joined_gpus) == (36, False, 4)


def test_the_shorthand_knows_racks() -> None:
    cluster = parse_shorthand("18x4xGB200")
    assert {node.domain for node in cluster.nodes} == {"gb200"}
    assert any("one domain" in a.what for a in cluster.assumptions)
    assert {node.domain for node in parse_shorthand("1x72xGB200").nodes} == {None}


def test_a_matrix_is_many_links() -> None:
    cluster = read(
        "nodes: [{name: a, count: 2, gpus: 'T4:4'}, {name: b, gpus: 'T4:4'}, {name: c, gpus: 'T4:4'}]\n"
        "network:\n  default: 100Gbit\n  matrix:\n    between: [a, b, c]\n    unit: Gbit/s\n"
        "    latency: 30us\n    bandwidth: [[40, 20, 5], [25, -, 10], [5, 10, 0]]\n"
    )
    a0, a1, b, c = cluster.nodes
    pairs = {(a0, a1): 40, (a0, b): 20, (a1, b): 20, (a0, c): 5, (b, c): 10}
    for (x, y), gbit in pairs.items():
        assert cluster.bandwidth_bytes_per_s(x, y) == cluster.bandwidth_bytes_per_s(y, x) == gbit * 0.125e9
        assert cluster.latency_s(x, y) == pytest.approx(30e-6)


def test_sites_share_one_line() -> None:
    cluster = read(
        "nodes: [{name: a, count: 2, gpus: 'T4:4'}, {name: b, gpus: 'T4:4'}, {name: z, gpus: 'T4:4'}]\n"
        "network: {links: [{between: [z, [a, b]], bandwidth: 1Gbit, latency: 10ms, shared: true}]}\n"
    )
    a0, a1, b, z = cluster.nodes
    lines = [cluster.line(x, z) for x in (a0, a1, b)]
    assert {line[0].line for line in lines if line} == {"z~a+b"}
    # From a or b to z is against the direction in which the file names the ends.
    assert [line[1] for line in lines if line] == [False] * 3
    back = cluster.line(z, b)
    assert back is not None
    assert back[1]
    assert cluster.line(a0, a1) is None


@pytest.mark.parametrize(
    "text",
    [
        RACKS,
        "nodes: [{name: a, gpus: 'A40:4', intra: nvlink-pairs}]",
        SITES,
    ],
)
def test_a_plan_document_holds_all_of_it(text: str) -> None:
    cluster = read(text)
    assert cluster_from_dict(cluster_to_dict(cluster)) == cluster
    back = ClusterSection.of(cluster).to_cluster()
    assert fingerprint(back) == fingerprint(cluster)
    assert set(back.nodes) == set(cluster.nodes)
    assert back.links == cluster.links


def test_plain_clusters_are_written_as_before() -> None:
    data = ClusterSection.of(parse_shorthand("2x4xT4+1x8xV100-16GB-SXM2")).model_dump(mode="json")
    assert not {"bridge", "domain", "nic_share_frac"} & set(data["nodes"][0])
    linked = (
        "nodes: [{name: a, count: 2, gpus: 'T4:1'}]\nnetwork: {links: [{between: [a, a], bandwidth: 1Gbit}]}"
    )
    (link,) = ClusterSection.of(read(linked)).model_dump(mode="json")["links"]
    assert "line" not in link
