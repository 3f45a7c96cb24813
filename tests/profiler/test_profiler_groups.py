"""Who talks to whom. Without torch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tangram.profiler.groups import Rank, node_counts, rank_groups
from tangram.profiles.records import Scope


def ranks_of(*nodes: tuple[str, int]) -> list[Rank]:
    """Ranks of nodes, each a GPU and how many."""
    kinds = [(node, gpu) for node, (gpu, count) in enumerate(nodes) for _ in range(count)]
    return [Rank(number, node, gpu) for number, (node, gpu) in enumerate(kinds)]


def test_one_process_has_no_group() -> None:
    assert rank_groups(ranks_of(("A", 1))) == ()


def test_one_node() -> None:
    groups = rank_groups(ranks_of(("A", 8)))
    assert [(group.members, group.ranks_per_node) for group in groups] == [
        ((0, 1), 2),
        ((0, 1, 2, 3), 4),
        (tuple(range(8)), 8),
    ]
    assert {group.scope for group in groups} == {Scope.INTRA_NODE}


def test_nodes_of_one_kind() -> None:
    groups = rank_groups(ranks_of(("A", 2), ("A", 2), ("A", 2)))
    across = [(group.members, group.ranks_per_node) for group in groups if group.scope is Scope.INTER_NODE]
    assert across == [((0, 2), 1), ((0, 1, 2, 3), 2), ((0, 2, 4), 1), ((0, 1, 2, 3, 4, 5), 2)]


def test_kinds_stay_apart_and_odd_nodes_out() -> None:
    groups = rank_groups(ranks_of(("A", 2), ("B", 1), ("A", 1), ("B", 1)))
    assert [(group.gpu, group.members) for group in groups] == [("A", (0, 1)), ("B", (2, 4))]


def test_numbers_of_nodes() -> None:
    assert [node_counts(n) for n in (1, 2, 3, 4, 6, 9)] == [[], [2], [2, 3], [2, 4], [2, 4, 6], [2, 4, 8, 9]]


@given(st.lists(st.tuples(st.sampled_from("AB"), st.integers(1, 8)), min_size=1, max_size=6))
def test_groups_keep_their_promises(nodes: list[tuple[str, int]]) -> None:
    ranks = ranks_of(*nodes)
    groups = rank_groups(ranks)
    assert len(set(groups)) == len(groups)
    for group in groups:
        members = [ranks[number] for number in group.members]
        assert {rank.gpu for rank in members} == {group.gpu}
        assert len(set(group.members)) == len(members) > 1
        per_node = {node: sum(rank.node == node for rank in members) for node in {r.node for r in members}}
        assert set(per_node.values()) == {group.ranks_per_node}
        assert (len(per_node) == 1) == (group.scope is Scope.INTRA_NODE)
