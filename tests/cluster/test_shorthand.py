"""The shorthand for clusters."""

from __future__ import annotations

import pytest

from tangram.cluster.shorthand import parse_shorthand
from tangram.errors import InputError, UnknownNameError


def test_terms_become_groups_of_nodes() -> None:
    lab = parse_shorthand("2x8xH100-80GB-SXM+1x4xA100-40GB-SXM@100Gbit")
    assert [n.name for n in lab.nodes] == ["h100-80gb-sxm-0", "h100-80gb-sxm-1", "a100-40gb-sxm"]
    assert [n.gpu.name for n in lab.nodes] == ["H100-80GB-SXM", "H100-80GB-SXM", "A100-40GB-SXM"]
    assert [n.num_gpus for n in lab.nodes] == [8, 8, 4]
    assert {n.nic_bandwidth_bytes_per_s for n in lab.nodes} == {12.5e9}
    assert lab.default_bandwidth_bytes_per_s == 12.5e9
    assert lab.nodes[0].intra_bandwidth_bytes_per_s == 450e9
    assert [a.what for a in lab.assumptions] == [
        "network latency of 10 us",
        "links inside the nodes as in the GPU catalogue",
    ]


def test_a_missing_network_is_an_assumption() -> None:
    lab = parse_shorthand(" 2x1xT4 ")
    assert lab.name == "2x1xT4"
    assert lab.default_bandwidth_bytes_per_s == 12.5e9
    assert lab.assumptions[0].what == "network of 100 Gbit/s"
    assert parse_shorthand("1x1xT4").assumptions == ()


def test_a_part_may_occur_twice() -> None:
    lab = parse_shorthand("1x8xT4+2x4xT4@25GB/s")
    assert [n.name for n in lab.nodes] == ["t4", "t4.2-0", "t4.2-1"]
    assert lab.default_bandwidth_bytes_per_s == 25e9


def test_a_part_without_links_for_all_talks_over_pcie() -> None:
    assert parse_shorthand("1x4xA40").nodes[0].intra_kind == "pcie"
    assert parse_shorthand("1x4xRTX-3090").nodes[0].intra_kind == "pcie-host"
    assert parse_shorthand("1x8xMI300X").nodes[0].intra_kind == "xgmi"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8xT4", "does not follow the form"),
        ("2x8xT4+", "does not follow the form"),
        ("+2x8xT4", "does not follow the form"),
        ("2x8x", "does not follow the form"),
        ("-2x8xT4", "does not follow the form"),
        ("2x8xT4@", "is not a bandwidth"),
        ("2x8xT4@100", "no unit of bandwidth"),
        ("2x8xT4@100Gbit@10Gbit", "is not a bandwidth"),
        ("0x8xT4", "0 nodes is out of range"),
        ("2x0xT4", "0 GPUs per node is out of range"),
        ("2x257xT4", "legal: 1 to 256"),
        ("99999x8xT4", "legal: 1 to 65536"),
        ("60000x8xT4+60000x8xT4", "more than 65536 nodes"),
        (f"{'9' * 5000}x8xT4", "does not follow the form"),
        ("2x8xA100-80GB", "does not say which variant"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_shorthand(text)


def test_unknown_part() -> None:
    with pytest.raises(UnknownNameError) as caught:
        parse_shorthand("2x8xH100-80GB-SMX@100Gbit")
    assert "H100-80GB-SXM" in caught.value.nearest
