"""All pairs at once must say what the conditions say pair by pair."""

from __future__ import annotations

from cluster_strategies import clusters, precisions, tolerances
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.cluster.block_pairs import pair_up
from tangram.cluster.classes import classify
from tangram.cluster.grouping import Grouping, components
from tangram.cluster.islands import Tolerances
from tangram.cluster.spec import Cluster
from tangram.job import Precision


@settings(max_examples=400, deadline=None, derandomize=True)
@given(clusters(), precisions, tolerances, st.data())
def test_pairs_agree_with_the_conditions(
    some: Cluster, precision: Precision, limits: Tolerances, data: st.DataObject
) -> None:
    classes, network = classify(some, precision)
    homes = data.draw(st.lists(st.integers(0, 3), min_size=len(classes), max_size=len(classes)))
    drawn = [[idx for idx, home in enumerate(homes) if home == at] for at in sorted(set(homes))]
    grouping = Grouping(classes, network, limits)
    blocks = [block for block in drawn if grouping.nodes_alike(block)]
    blocks += [[idx] for block in drawn if block not in blocks for idx in block]
    pairs = pair_up(blocks, classes, network, limits)
    for a, one in enumerate(blocks):
        for b, other in enumerate(blocks):
            union = one + other
            fits = grouping.nodes_alike(union) and grouping.links_even(union) and grouping.near(union)
            assert pairs.possible[a, b] == (fits and a != b)


def test_components_are_in_ascending_order() -> None:
    _, network = classify(Cluster("none", (), 1.0, 0.0), Precision.FP16)
    assert components(network.exists) == []
