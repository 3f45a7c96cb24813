"""Exact slots for the counts that the search decided: whatever fits by counts is placed."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable
from math import gcd

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_islands import make_island

from tangram.cluster.spec import Bridge, Island, Portion, portions
from tangram.errors import InternalError
from tangram.planner.placement import Homes, improved_homes, packed_homes, place

NODE_SIZES = (1, 2, 3, 4, 6, 8, 16)


@st.composite
def stage_lists(draw: st.DrawFn) -> list[Portion]:
    """Portions of up to three islands, in any order, that take no more GPUs than there are."""
    islands = [
        make_island(f"island{i}", draw(st.sampled_from(NODE_SIZES)), draw(st.integers(1, 6)))
        for i in range(draw(st.integers(1, 3)))
    ]
    chosen: list[Portion] = []
    for island in islands:
        left = island.num_gpus
        while left and draw(st.integers(0, 9)):
            portion = draw(st.sampled_from([p for p in portions(island) if p.num_gpus <= left]))
            chosen.append(portion)
            left -= portion.num_gpus
    return draw(st.permutations(chosen))


def whim(seed: int) -> Callable[[Homes], int]:
    """A cost without rhyme or reason, so that stages move wherever they can."""

    def cost_ns(homes: Homes) -> int:
        return random.Random(f"{seed} {[[n.name for n in nodes] for nodes in homes]}").randrange(100)

    return cost_ns


@settings(max_examples=400, deadline=None)
@given(stage_lists(), st.none() | st.integers(0, 9))
def test_whatever_fits_by_counts_is_placed(stages: list[Portion], seed: int | None) -> None:
    packed = packed_homes(stages)
    placements = place(stages, None if seed is None else improved_homes(stages, packed, whim(seed)))
    assert [p.portion for p in placements] == stages
    used = Counter((slot.node.name, slot.gpu_idx) for p in placements for slot in p.slots)
    assert all(count == 1 for count in used.values())
    for portion, placement in zip(stages, placements, strict=True):
        assert len(placement.slots) == portion.num_gpus
        assert len(placement.nodes) == portion.num_nodes
        assert set(placement.nodes) <= set(portion.island.nodes)
        per_node = Counter(slot.node.name for slot in placement.slots)
        assert set(per_node.values()) == {portion.gpus_per_node}
        assert all(0 <= slot.gpu_idx < slot.node.num_gpus for slot in placement.slots)
        names = [slot.node.name for slot in placement.slots]
        assert names == sorted(names), "the GPUs of a node are neighbours in rank order"


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([(4, 2), (6, 2), (8, 2), (8, 4), (12, 2), (12, 4)]), st.data())
def test_no_stage_begins_inside_a_bridge(shape: tuple[int, int], data: st.DataObject) -> None:
    """GPUs that a bridge joins need not follow each other: here they lie as far apart as they can."""
    size, joined = shape
    groups = tuple(tuple(range(first, size, size // joined)) for first in range(size // joined))
    plain = make_island("island", size, 2)
    bridge = Bridge(groups, "nvlink", 3e11, 3e-6)
    nodes = tuple(dataclasses.replace(node, bridge=bridge) for node in plain.nodes)
    island = dataclasses.replace(plain, nodes=nodes)
    stages: list[Portion] = []
    left = island.num_gpus
    while left and data.draw(st.integers(0, 9)):
        stages.append(data.draw(st.sampled_from([p for p in portions(island) if p.num_gpus <= left])))
        left -= stages[-1].num_gpus
    try:
        placements = place(stages)
    except InternalError:
        return  # whole nodes and parts that fit by counts alone
    used = Counter((slot.node.name, slot.gpu_idx) for p in placements for slot in p.slots)
    assert all(count == 1 for count in used.values())
    for placement in placements:
        width = gcd(placement.portion.gpus_per_node, joined)
        gpus = [slot.gpu_idx for slot in placement.slots]
        for first in range(0, len(gpus), width):
            assert any(set(gpus[first : first + width]) <= set(group) for group in groups)


def test_stages_smaller_than_a_node_fill_opened_nodes_first() -> None:
    island = make_island("only", 8, 3)
    half, quarter, whole = Portion(island, 1, 4), Portion(island, 1, 2), Portion(island, 1, 8)
    placements = place([quarter, half, whole, quarter])
    assert [[n.name for n in p.nodes] for p in placements] == [
        ["only-001"],
        ["only-001"],
        ["only-000"],
        ["only-001"],
    ]
    assert [slot.gpu_idx for slot in placements[0].slots] == [4, 5]


def test_equal_stages_keep_the_order_of_the_pipeline() -> None:
    island = make_island("only", 4, 2)
    placements = place([Portion(island, 1, 2)] * 4)
    assert [p.nodes[0].name for p in placements] == ["only-000", "only-000", "only-001", "only-001"]


def test_what_does_not_fit_by_counts_is_our_own_fault() -> None:
    island: Island = make_island("only", 4, 1)
    with pytest.raises(InternalError, match="do not fit"):
        place([Portion(island, 1, 4), Portion(island, 1, 1)])
