"""What the search may use: islands with the precision, portions that pack, and a lattice that stays small."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_islands import make_island

from tangram.cluster.islands import build_islands
from tangram.cluster.shorthand import parse_shorthand
from tangram.cluster.spec import Island, portions
from tangram.job import Precision
from tangram.planner.space import LATTICE_LIMIT, SearchSpace, search_space

NODE_SIZES = (1, 2, 4, 6, 8, 16)


@st.composite
def clusters(draw: st.DrawFn) -> list[Island]:
    shapes = draw(
        st.lists(st.tuples(st.sampled_from(NODE_SIZES), st.integers(1, 200)), min_size=1, max_size=6)
    )
    return [make_island(f"island{i}", size, nodes) for i, (size, nodes) in enumerate(shapes)]


def lattice(space: SearchSpace) -> int:
    return prod(units + 1 for units in space.capacity)


@settings(max_examples=150, deadline=None)
@given(clusters(), st.sampled_from([50, 500, LATTICE_LIMIT]))
def test_coarsening_keeps_the_lattice_small(islands: list[Island], limit: int) -> None:
    space = search_space(islands, Precision.FP16, lattice_limit=limit)
    assert lattice(space) <= limit or max(space.capacity) == 1
    for island, unit, capacity in zip(space.islands, space.units, space.capacity, strict=True):
        assert capacity == island.num_gpus // unit >= 1
        assert island.gpus_per_node % unit == 0 or unit % island.gpus_per_node == 0
        coarse = f"{island.name} is counted in blocks of {unit} GPUs"
        assert any(note.startswith(coarse) for note in space.notes) == (unit > 1)


@settings(max_examples=150, deadline=None)
@given(clusters(), st.sampled_from([50, 500, LATTICE_LIMIT]))
def test_portions_are_whole_units_and_legal(islands: list[Island], limit: int) -> None:
    space = search_space(islands, Precision.FP16, lattice_limit=limit)
    for idx, portion in enumerate(space.portions):
        at = space.portion_islands[idx]
        assert portion.island is space.islands[at]
        assert portion in portions(portion.island)
        assert space.portion_units(idx) * space.units[at] == portion.num_gpus
        assert 1 <= space.portion_units(idx) <= space.capacity[at]
        link = space.link_classes[space.portion_classes[idx]]
        assert (link.island, link.num_nodes) == (at, portion.num_nodes)
        assert link.whole == (portion.gpus_per_node == portion.island.gpus_per_node)
    assert set(space.portion_islands) == set(range(len(space.islands)))


def test_small_clusters_are_not_coarsened() -> None:
    islands = build_islands(
        parse_shorthand("1x4xA100-40GB-SXM+1x8xV100-32GB-SXM2+2x4xT4@10Gbit"), Precision.FP16
    )
    space = search_space(islands, Precision.FP16)
    assert space.units == (1, 1, 1)
    assert space.capacity == tuple(island.num_gpus for island in islands)
    assert space.portions == tuple(p for island in islands for p in portions(island))
    assert not space.notes


def test_the_largest_count_is_coarsened_first() -> None:
    space = search_space(
        [make_island("large", 8, 64), make_island("small", 4, 1)], Precision.FP16, lattice_limit=700
    )
    assert space.units == (4, 1)
    assert space.notes == ("large is counted in blocks of 4 GPUs",)


def test_islands_without_the_precision_are_excluded() -> None:
    islands = build_islands(parse_shorthand("1x4xA100-40GB-SXM+1x8xV100-32GB-SXM2"), Precision.BF16)
    space = search_space(islands, Precision.BF16)
    assert [island.name for island in space.islands] == ["A100-40GB-SXM"]
    ((left_out, reason),) = space.excluded
    assert left_out.name == "V100-32GB-SXM2"
    assert reason == "V100-32GB-SXM2 has no bf16 matrix arithmetic; --precision fp16 would let it take part"
    assert space.num_gpus == 4


@pytest.mark.parametrize("nodes", [1, 12, 40])
def test_node_counts_thin_out_only_on_large_islands(nodes: int) -> None:
    space = search_space([make_island("only", 8, nodes)], Precision.FP16)
    counts = {p.num_nodes for p in space.portions}
    assert {1, nodes} <= counts
    assert counts >= set(range(1, min(nodes, 12) + 1))
    assert max(counts) == nodes


def test_a_space_that_may_not_be_coarse_is_large_instead() -> None:
    islands = [make_island("one", 8, 8), make_island("other", 8, 8)]
    coarse = search_space(islands, Precision.FP16, may_be_large=True)
    assert not coarse.is_large
    assert max(coarse.units) > 1
    whole = search_space(islands, Precision.FP16, may_be_large=True, may_be_coarse=False)
    assert whole.is_large
    assert whole.units == (1, 1)
    assert not whole.notes
    assert not search_space(islands[:1], Precision.FP16, may_be_large=True, may_be_coarse=False).is_large
    assert not search_space(islands, Precision.FP16, may_be_coarse=False).is_large


def test_too_many_islands_are_large_in_any_units() -> None:
    islands = [make_island(f"island{idx}", 4, 1) for idx in range(13)]
    assert search_space(islands, Precision.FP16, may_be_large=True).is_large
    assert not search_space(islands[:3], Precision.FP16, may_be_large=True).is_large
