"""Cluster files: what they mean, and every refusal with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tangram.cluster.readers import cluster_from_yaml, load_cluster
from tangram.cluster.spec import Assumption, Cluster
from tangram.errors import InputError, UnknownNameError
from tangram.yaml_reader import parse_yaml

FULL = """\
name: lab
nodes:
  - {name: a100, count: 2, gpu: A100-80GB-SXM, gpus: 8, intra: nvlink, nics: 200Gbit x4}
  - {name: v100, gpu: V100-32GB-SXM2, gpus: 4, intra: {link: 100GB/s, latency: 3us}, nics: 10Gbit}
  - {name: rtx, gpu: RTX-3090, gpus: 2, intra: pcie, nics: 25Gbit, host: box}
  - {name: ada, gpu: RTX-4090, gpus: 1, host: box}
network:
  default: 100Gbit
  latency: 7us
  links:
    - {between: [a100, a100], bandwidth: 800Gbit, latency: 4us}
    - {between: [a100-0, v100], bandwidth: 5Gbit}
assumed:
  - {what: the links, why: nobody measured them}
"""


def read(text: str, name: str = "file") -> Cluster:
    return cluster_from_yaml(parse_yaml(text, "c.yaml"), name)


def node_line(**fields: str) -> str:
    values = {"name": "n", "gpu": "A100-80GB-SXM", "gpus": "8"} | fields
    return "{" + ", ".join(f"{key}: {value}" for key, value in values.items() if value) + "}"


def with_node(**fields: str) -> str:
    return f"nodes:\n  - {node_line(**fields)}\n"


def with_network(network: str) -> str:
    return f"nodes:\n  - {node_line(name='a', count='2')}\n  - {node_line(name='b')}\nnetwork: {network}\n"


def test_a_full_file_means_what_it_says() -> None:
    lab = read(FULL)
    assert lab.name == "lab"
    assert [n.name for n in lab.nodes] == ["a100-0", "a100-1", "v100", "rtx", "ada"]
    assert [n.group for n in lab.nodes] == ["a100", "a100", "v100", "rtx", "ada"]
    assert [n.host for n in lab.nodes] == ["a100-0", "a100-1", "v100", "box", "box"]
    assert lab.num_gpus == 23
    a, a1, v, rtx, ada = lab.nodes
    assert (a.intra_kind, a.intra_bandwidth_bytes_per_s) == ("nvlink", 300e9)
    assert (v.intra_bandwidth_bytes_per_s, v.intra_latency_s) == (100e9, 3e-6)
    assert (rtx.intra_kind, rtx.intra_bandwidth_bytes_per_s) == ("pcie-host", 25.6e9)
    assert [n.nic_bandwidth_bytes_per_s for n in lab.nodes] == [100e9, 100e9, 1.25e9, 3.125e9, 3.125e9]
    assert (lab.bandwidth_bytes_per_s(a, a1), lab.latency_s(a, a1)) == (100e9, 4e-6)
    assert (lab.bandwidth_bytes_per_s(a, v), lab.latency_s(a, v)) == (0.625e9, 7e-6)
    assert lab.bandwidth_bytes_per_s(a1, v) == 1.25e9
    assert lab.bandwidth_bytes_per_s(rtx, ada) == 25.6e9
    no_peers = "RTX-3090 has no peer access over PCIe; state a bandwidth if yours have it"
    assert lab.assumptions == (
        Assumption("the links", "nobody measured them"),
        Assumption("pcie-host of 25.6 GB/s inside rtx", no_peers),
    )


def test_json_of_the_same_shape_is_the_same_cluster(tmp_path: Path) -> None:
    data = {
        "name": "lab",
        "nodes": [{"name": "a", "count": 2, "gpu": "T4", "gpus": 4, "intra": "pcie", "nics": "50Gbit"}],
        "network": {"default": "50Gbit", "latency": "30us", "links": []},
    }
    (tmp_path / "lab.json").write_text(json.dumps(data, indent="\t"))
    (tmp_path / "lab.yaml").write_text(
        "name: lab\nnodes: [{name: a, count: 2, gpu: T4, gpus: 4, intra: pcie, nics: 50Gbit}]\n"
        "network: {default: 50Gbit, latency: 30us}\n"
    )
    assert load_cluster(str(tmp_path / "lab.json")) == load_cluster(str(tmp_path / "lab.yaml"))


def test_what_the_file_leaves_out_is_filled_in_and_noted() -> None:
    nodes = (node_line(name="a", count="2"), node_line(name="r", gpu="RTX-3090", gpus="4"))
    lab = read(f"nodes: [{', '.join(nodes)}]")
    assert lab.name == "file"
    assert lab.default_bandwidth_bytes_per_s == 12.5e9
    assert {n.nic_bandwidth_bytes_per_s for n in lab.nodes} == {12.5e9}
    # An NVLink bridge joins pairs of RTX-3090, so four of them talk over PCIe, and have no peer access there.
    assert [n.intra_kind for n in lab.nodes] == ["nvlink", "nvlink", "pcie-host"]
    assert [a.what for a in lab.assumptions] == [
        "network of 100 Gbit/s",
        "network latency of 10 us",
        "NICs of a, r as fast as the network",
        "nvlink of 300 GB/s inside a",
        "pcie-host of 25.6 GB/s inside r",
    ]


def test_one_host_needs_no_network() -> None:
    lab = read("nodes: [{name: a, gpu: T4, gpus: 1}]")
    assert lab.assumptions == ()


def test_unstated_nics_carry_the_fastest_link() -> None:
    lab = read(
        with_network("{default: 10Gbit, latency: 5us, links: [{between: [a, a], bandwidth: 400Gbit}]}")
    )
    a0, a1, b = lab.nodes
    assert lab.bandwidth_bytes_per_s(a0, a1) == 50e9
    assert lab.bandwidth_bytes_per_s(a0, b) == 1.25e9
    assert b.nic_bandwidth_bytes_per_s == 1.25e9


def test_entries_of_shared_hosts_are_expanded_alike() -> None:
    lab = read(
        "nodes:\n  - {name: big, count: 2, gpu: A100-80GB-SXM, gpus: 2, host: box, nics: 50Gbit}\n"
        "  - {name: small, count: 2, gpu: A100-40GB-SXM, gpus: 2, host: box}\n"
    )
    assert [n.host for n in lab.nodes] == ["box-0", "box-1", "box-0", "box-1"]
    assert {n.nic_bandwidth_bytes_per_s for n in lab.nodes} == {6.25e9}


REFUSED = [
    # the file as a whole
    ("[1]", "c.yaml:1", "expected a mapping"),
    ("name: x\n", "c.yaml:1", "'nodes' is missing"),
    ("nodes: []\n", "c.yaml:1: nodes", "list of nodes is empty"),
    ("nodes: {}\n", "c.yaml:1: nodes", "expected a list"),
    ("nodes:\n", "c.yaml:1: nodes", "expected a list, found an empty value"),
    ("name: no\nnodes: [{name: a, gpu: T4, gpus: 1}]", "c.yaml:1: name", "put it in quotes"),
    # a node
    (with_node(name=""), "c.yaml:2: nodes[0]", "'name' is missing"),
    (with_node(gpu=""), "c.yaml:2: nodes[0]", "'gpu' is missing"),
    (with_node(gpus=""), "c.yaml:2: nodes[0]", "'gpus' is missing"),
    (with_node(name="no"), "c.yaml:2: nodes[0].name", "found a yes/no value, 'no'"),
    (with_node(name="12:30"), "c.yaml:2: nodes[0].name", "YAML readers disagree"),
    (with_node(name="a b"), "c.yaml:2: nodes[0].name", "cannot be a name"),
    (with_node(name="x" * 65), "c.yaml:2: nodes[0].name", "cannot be a name"),
    (with_node(gpus="0"), "c.yaml:2: nodes[0].gpus", "0 is out of range (legal: 1 to 256)"),
    (with_node(gpus="-8"), "c.yaml:2: nodes[0].gpus", "out of range"),
    (with_node(gpus="1e9"), "c.yaml:2: nodes[0].gpus", "expected a whole number, found a number, '1e9'"),
    (with_node(gpus="'8'"), "c.yaml:2: nodes[0].gpus", "found a text, '8'"),
    (with_node(gpus="8.0"), "c.yaml:2: nodes[0].gpus", "expected a whole number"),
    (with_node(gpus="010"), "c.yaml:2: nodes[0].gpus", "expected a whole number"),
    (with_node(gpus="[8]"), "c.yaml:2: nodes[0].gpus", "expected a whole number, found a list"),
    (with_node(count="0"), "c.yaml:2: nodes[0].count", "out of range"),
    (with_node(count="65537"), "c.yaml:2: nodes[0].count", "out of range"),
    (with_node(gpu="A100-80GB"), "c.yaml:2: nodes[0].gpu", "A100-80GB-SXM or A100-80GB-PCIe"),
    (with_node(intra="infiniband"), "c.yaml:2: nodes[0].intra", "unknown link 'infiniband'"),
    (with_node(intra="300"), "c.yaml:2: nodes[0].intra", "expected nvlink, nvlink-pairs, xgmi"),
    (with_node(intra="300GB"), "c.yaml:2: nodes[0].intra", "no unit of bandwidth"),
    (with_node(intra="xgmi"), "c.yaml:2: nodes[0].intra", "legal: nvlink or pcie"),
    (with_node(gpu="T4", intra="nvlink"), "c.yaml:2: nodes[0].intra", "T4 has no nvlink"),
    (with_node(gpu="RTX-3090", intra="nvlink"), "c.yaml:2: nodes[0].intra", "joins pairs, not 8"),
    (with_node(intra="{latency: 3us}"), "c.yaml:2: nodes[0].intra", "'link' is missing"),
    (with_node(gpu="", gpus="A100-80GB-SXM"), "c.yaml:2: nodes[0].gpus", "does not say how many"),
    (with_node(gpu="", gpus="A100-80GB-SXM:0"), "c.yaml:2: nodes[0].gpus", "legal: 1 to 256"),
    (with_node(gpu="", gpus="[]"), "c.yaml:2: nodes[0].gpus", "list of GPUs is empty"),
    (with_node(gpu="", gpus="[T4:2, 'T4:2']"), "c.yaml:2: nodes[0].gpus[1]", "T4 is listed twice"),
    (with_node(gpu="", gpus="[T4:2, L4:2]", host="h"), "c.yaml:2: nodes[0].host", "a host already"),
    (with_node(intra="nvlink-pairs"), "c.yaml:2: nodes[0].intra", "joins all GPUs of a node"),
    (with_node(gpu="A40", intra="xgmi-pairs"), "c.yaml:2: nodes[0].intra", "A40 has no xgmi"),
    (with_node(gpu="A40", gpus="5", intra="nvlink-pairs"), "c.yaml:2: nodes[0].intra", "5 GPUs are no pairs"),
    (with_node(gpu="A40", intra="{link: pcie, groups: [[0, 1]]}"), "c.yaml:2", "groups without a bridge"),
    (
        with_node(gpu="A40", gpus="4", intra="{link: pcie, bridge: nvlink, groups: [[0, 1], [1, 2]]}"),
        "c.yaml:2: nodes[0].intra.groups",
        "do not divide GPUs 0 to 3",
    ),
    (
        with_node(gpu="A40", gpus="2", intra="{link: pcie, bridge: nvlink, groups: [[0], [1]]}"),
        "c.yaml:2: nodes[0].intra.groups",
        "groups of 1 GPUs",
    ),
    (with_node(intra="{link: nvlink, unit: GB/s}"), "c.yaml:2: nodes[0].intra.unit", "without a matrix"),
    (with_node(gpus="2", intra="{matrix: [[0, 5]]}"), "c.yaml:2: nodes[0].intra.matrix", "1 rows for 2"),
    (with_node(gpus="2", intra="{matrix: [[0, 5], [5]]}"), "c.yaml:2", "the row of GPU 1 has 1 cells"),
    (with_node(gpus="2", intra="{matrix: [[0, 5], [5, 0]]}"), "c.yaml:2: nodes[0]", "add 'unit: GB/s'"),
    (
        with_node(gpus="2", intra="{matrix: [[-, -], [5GB/s, -]]}"),
        "c.yaml:2: nodes[0].intra.matrix[0][1]",
        "this cell is empty",
    ),
    (with_node(gpus="1", intra="{matrix: [[-]]}"), "c.yaml:2: nodes[0].intra", "one GPU has no links"),
    (with_node(gpu="T4", count="2", domain="2"), "c.yaml:2: nodes[0].domain", "joins no domain"),
    (with_node(domain="0"), "c.yaml:2: nodes[0].domain", "out of range"),
    (with_node(nics="[]"), "c.yaml:2: nodes[0].nics", "list of NICs is empty"),
    (with_node(nics="[100Gbit, fast]"), "c.yaml:2: nodes[0].nics[1]", "is not a bandwidth"),
    (with_node(intra="{link: pcie, latency: 3}"), "c.yaml:2: nodes[0].intra.latency", "a duration"),
    (with_node(intra="{link: pcie, latency: 3min}"), "c.yaml:2: nodes[0].intra.latency", "unit of time"),
    (with_node(nics="100"), "c.yaml:2: nodes[0].nics", "expected NICs such as 100Gbit"),
    (with_node(nics="0Gbit"), "c.yaml:2: nodes[0].nics", "not above zero"),
    (with_node(nics="1e999Gbit"), "c.yaml:2: nodes[0].nics", "too large a number"),
    (with_node(nics="1bit"), "c.yaml:2: nodes[0].nics", "out of range (legal: 1Mbit to 100TB/s)"),
    (with_node(nics="fast"), "c.yaml:2: nodes[0].nics", "is not a bandwidth"),
    (with_node(nics="-100Gbit"), "c.yaml:2: nodes[0].nics", "is not a bandwidth"),
    (with_node(nics="100Gbit x0"), "c.yaml:2: nodes[0].nics", "legal: x1 to x64"),
    (with_node(nics="100Gbit x999"), "c.yaml:2: nodes[0].nics", "legal: x1 to x64"),
    (with_node(nics=f"100Gbit x{'9' * 5000}"), "c.yaml:2: nodes[0].nics", "legal: x1 to x64"),
    (with_node(host="'a b'"), "c.yaml:2: nodes[0].host", "cannot be a name"),
    (f"{with_node()}  - {node_line()}", "c.yaml:3: nodes[1]", "the name 'n' is taken"),
    (f"{with_node(count='2')}  - {node_line(name='n-1')}", "c.yaml:3: nodes[1]", "'n-1' is taken"),
    (f"{with_node(name='n-0')}  - {node_line(count='2')}", "c.yaml:3: nodes[1]", "'n-0' is taken"),
    (
        f"{with_node(count='2', host='h')}  - {node_line(name='m', count='3', host='h')}",
        "c.yaml:3: nodes[1]",
        "need the same count",
    ),
    (
        f"{with_node(host='h', nics='10Gbit')}  - {node_line(name='m', host='h', nics='25Gbit')}",
        "c.yaml:3: nodes[1]",
        "different NICs",
    ),
    (
        "nodes:\n" + "".join(f"  - {node_line(name=f'n{i}', count='40000')}\n" for i in range(2)),
        "c.yaml:3: nodes[1]",
        "more than 65536 nodes",
    ),
    # the network
    (with_network("100Gbit"), "c.yaml:4: network", "expected a mapping"),
    (with_network("{default: 100}"), "c.yaml:4: network.default", "expected a bandwidth"),
    (with_network("{default: 1000000TB/s}"), "c.yaml:4: network.default", "out of range"),
    (with_network("{latency: 5}"), "c.yaml:4: network.latency", "expected a duration"),
    (with_network("{latency: 5s}"), "c.yaml:4: network.latency", "out of range"),
    (with_network("{latency: 1e999s}"), "c.yaml:4: network.latency", "out of range"),
    (with_network("{links: {}}"), "c.yaml:4: network.links", "expected a list"),
    (with_network("{links: [{between: [a, b]}]}"), "c.yaml:4: network.links[0]", "'bandwidth' is missing"),
    (with_network("{links: [{bandwidth: 1Gbit}]}"), "c.yaml:4: network.links[0]", "'between' is missing"),
    (with_network("{links: [{between: a, bandwidth: 1Gbit}]}"), "c.yaml:4: network.links[0]", "a list"),
    (with_network("{links: [{between: [a], bandwidth: 1Gbit}]}"), "c.yaml:4", "expected two names, found 1"),
    (with_network("{links: [{between: [b, b], bandwidth: 1Gbit}]}"), "c.yaml:4", "are one host"),
    (with_network("{links: [{between: [a-0, a-0], bandwidth: 1Gbit}]}"), "c.yaml:4", "are one host"),
    (
        with_network("{links: [{between: [a, b], bandwidth: 1Gbit}, {between: [b, a], bandwidth: 2Gbit}]}"),
        "c.yaml:4: network.links[1]",
        "given twice",
    ),
    (
        with_network("{links: [{between: [[a, b], b], bandwidth: 1Gbit}]}"),
        "c.yaml:4: network.links[0].between[0]",
        "add shared: true",
    ),
    (
        with_network("{links: [{between: [[], b], bandwidth: 1Gbit, shared: true}]}"),
        "c.yaml:4: network.links[0].between[0]",
        "an end without names",
    ),
    (
        with_network("{links: [{between: [a, b], bandwidth: 1Gbit, shared: maybe}]}"),
        "c.yaml:4: network.links[0].shared",
        "expected true or false",
    ),
    (with_network("{matrix: {between: [a, b]}}"), "c.yaml:4: network.matrix", "'bandwidth' is missing"),
    (
        with_network("{matrix: {between: [a, b], bandwidth: [[1, 1], [1, 1]]}}"),
        "c.yaml:4: network.matrix.bandwidth[0][0]",
        "add 'unit: GB/s'",
    ),
    (
        with_network("{matrix: {between: [a, b], unit: Gbit/h, bandwidth: [[1, 1], [1, 1]]}}"),
        "c.yaml:4: network.matrix.unit",
        "is not a bandwidth",
    ),
    (
        with_network(
            "{links: [{between: [a, b], bandwidth: 1Gbit}], "
            "matrix: {between: [a, b], unit: Gbit, bandwidth: [[1, 1], [1, -]]}}"
        ),
        "c.yaml:4: network.matrix",
        "given twice",
    ),
    (
        with_node(name="a", count="2", domain="d")
        + "network: {links: [{between: [a-0, a-1], bandwidth: 1Gbit}]}\n",
        "c.yaml:3: network.links[0].between",
        "in one domain",
    ),
    # what is assumed
    (with_node() + "assumed: [{what: x}]\n", "c.yaml:3: assumed[0]", "'why' is missing"),
    (with_node() + "assumed: [x]\n", "c.yaml:3: assumed[0]", "expected a mapping"),
    (with_node() + "assumed: yes\n", "c.yaml:3: assumed", "expected a list"),
    # YAML itself
    ("nodes:\n\t- {}\n", "c.yaml:2", "tabs"),
    ("nodes: &a [*a]\n", "c.yaml:1", "anchors"),
    ("nodes: [{name: a, name: b}]\n", "c.yaml:1", "given twice"),
]


@pytest.mark.parametrize(("text", "where", "message"), REFUSED)
def test_refusals_name_file_line_and_field(text: str, where: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert (caught.value.where or "").startswith(where)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "where", "nearest"),
    [
        ("node: []\nnodes: []\n", "c.yaml:1: node", "nodes"),
        (with_node(nic="1Gbit"), "c.yaml:2: nodes[0].nic", "nics"),
        (with_node(gpu="H100-80GB-SMX"), "c.yaml:2: nodes[0].gpu", "H100-80GB-SXM"),
        (with_node(intra="{link: pcie, latncy: 1us}"), "c.yaml:2: nodes[0].intra.latncy", "latency"),
        (with_network("{defualt: 1Gbit}"), "c.yaml:4: network.defualt", "default"),
        (with_network("{links: [{between: [a-7, b], bandwidth: 1Gbit}]}"), "c.yaml:4", "a-0"),
        (with_node() + "assumed: [{what: x, wy: y}]\n", "c.yaml:3: assumed[0].wy", "why"),
    ],
)
def test_unknown_names_come_with_the_nearest(text: str, where: str, nearest: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        read(text)
    assert (caught.value.where or "").startswith(where)
    assert nearest in caught.value.nearest


def test_load_cluster_takes_a_file_or_a_shorthand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lab.yaml").write_text(with_node())
    monkeypatch.chdir(tmp_path)
    assert load_cluster("lab.yaml").name == "lab"
    assert load_cluster("1x8xT4").num_gpus == 8
    (tmp_path / "1x8xT4").write_text(with_node(gpus="2"))
    assert load_cluster("1x8xT4").num_gpus == 2
    for text, message in (
        ("", "empty"),
        ("lba.yaml", "did you mean"),
        (".", "directory"),
        ("A100", "no such cluster file"),
        ("8xA100-80GB-SXM", "nodes x GPUs x part"),
    ):
        with pytest.raises(InputError, match=message):
            load_cluster(text)
