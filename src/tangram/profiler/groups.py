"""Which groups of ranks are timed: by kind of GPU, inside one node and across nodes. No torch.

Groups are timed one at a time, while all other ranks wait: what they measure is a link that nobody else uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tangram.job import divisors
from tangram.profiles.records import Scope


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of the run.

    Attributes:
        number: Its rank.
        node: Number of its node.
        gpu: Name of its device in the store.
    """

    number: int
    node: int
    gpu: str


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks that talk to each other, all on GPUs of one kind.

    Attributes:
        members: Ranks, node by node.
        gpu: The kind.
        scope: Inside a node, or across.
        ranks_per_node: Members on each node.
    """

    members: tuple[int, ...]
    gpu: str
    scope: Scope
    ranks_per_node: int


def rank_groups(ranks: Sequence[Rank]) -> tuple[RankGroup, ...]:
    """Returns the groups to time, kind by kind in the order of ranks.

    Inside the first node that has most ranks of a kind: as many ranks as divide that number. Across nodes:
    2, 4, 8 ... and all nodes of the kind that have as many ranks as the first, with each divisor of that
    number on each. A group of two is also the pair that sends point-to-point.
    """
    groups: list[RankGroup] = []
    for gpu in dict.fromkeys(rank.gpu for rank in ranks):
        groups += _of_kind(gpu, [rank for rank in ranks if rank.gpu == gpu])
    return tuple(groups)


def node_counts(num_nodes: int) -> list[int]:
    """Returns the numbers of nodes that groups span: 2, 4, 8 ... and all."""
    powers = [1 << exponent for exponent in range(1, num_nodes.bit_length()) if 1 << exponent <= num_nodes]
    return sorted({*powers, num_nodes} - {1})


def _of_kind(gpu: str, ranks: Sequence[Rank]) -> list[RankGroup]:
    nodes: dict[int, list[int]] = {}
    for rank in ranks:
        nodes.setdefault(rank.node, []).append(rank.number)
    size = max(len(members) for members in nodes.values())
    alike = [members for members in nodes.values() if len(members) == size]
    groups = [
        RankGroup(tuple(alike[0][:count]), gpu, Scope.INTRA_NODE, count)
        for count in divisors(size)
        if count > 1
    ]
    for num_nodes in node_counts(len(alike)):
        for count in divisors(size):
            members = tuple(number for node in alike[:num_nodes] for number in node[:count])
            groups.append(RankGroup(members, gpu, Scope.INTER_NODE, count))
    return groups
