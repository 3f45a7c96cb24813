"""Who talks to whom inside a stage: groups of ranks along the axes of its two meshes.

A group needs all processes to make it, members or not, in the same order. So every process walks over all
stages of the plan, and keeps the groups that it is in. Equal sets of ranks are one group (and one
communicator): where tp takes the whole stage, the group of tp is that of the stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch.distributed as dist

from tangram.plan.schema import LayerConfig, MeshSection, StageSection

DENSE_AXES = ("dp", "cp", "tp")
EXPERT_AXES = ("expert_dp", "ep", "expert_tp")


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that communicate, seen from one of them.

    Attributes:
        ranks: Global, in the order of the mesh.
        index: Place of this process among them.
        handle: What torch.distributed takes; None for a group of one, in which nothing is sent.
    """

    ranks: tuple[int, ...]
    index: int
    handle: Any = None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)


def group_of_one(rank: int = 0) -> Group:
    """Returns the group that a rank is alone in."""
    return Group((rank,), 0)


@dataclass(frozen=True, slots=True)
class StageGroups:
    """The groups of one rank of a stage.

    Attributes:
        dp, cp, tp: Along one axis of the dense mesh.
        data: Over dp and cp: the ranks that hold the same dense weights.
        shard: Over ``zero_axes``: states of dense weights are sharded over it.
        replicas: Over the axes of ``data`` that are not in ``zero_axes``: the holders of the same shard.
        expert_dp, ep, expert_tp: Along one axis of the mesh of experts; groups of one without experts.
        expert_shard, expert_replicas: As ``shard`` and ``replicas``, of experts' weights.
        stage: All ranks of the stage.
    """

    dp: Group
    cp: Group
    tp: Group
    data: Group
    shard: Group
    replicas: Group
    expert_dp: Group
    ep: Group
    expert_tp: Group
    expert_shard: Group
    expert_replicas: Group
    stage: Group

    @staticmethod
    def alone(rank: int = 0) -> StageGroups:
        """Returns the groups of a stage of one rank; needs no process group."""
        return StageGroups(*[group_of_one(rank)] * len(StageGroups.__dataclass_fields__))


class GroupMaker:
    """Makes groups; every process has one and asks it for the same groups in the same order.

    Args:
        rank: Of this process.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._made: dict[tuple[int, ...], Any] = {}

    def make(self, ranks: Sequence[int]) -> Group | None:
        """Returns the group of these ranks, or None where this process is not in it."""
        key = tuple(ranks)
        # torch numbers the members by rank, and collectives that join shares go by that number.
        assert key == tuple(sorted(set(key))), f"ranks of a group ascend, as in a plan: {key}"
        if len(key) > 1 and key not in self._made:
            self._made[key] = dist.new_group(list(key))
        if self.rank not in key:
            return None
        return Group(key, key.index(self.rank), self._made.get(key))

    def stage(self, stage: StageSection | LayerConfig, ranks: Sequence[int]) -> StageGroups | None:
        """Returns the groups of a stage (or of a run of its layers), or None where this process is not in it.

        Args:
            stage: The degrees.
            ranks: Global ranks of the stage, in mesh order.
        """
        rest = [axis for axis in ("dp", "cp") if axis not in stage.zero_axes]
        expert_rest = [axis for axis in ("expert_dp",) if axis not in stage.expert_zero_axes]
        asked: list[tuple[MeshSection | None, Sequence[str]]] = [
            *((stage.mesh, (axis,)) for axis in DENSE_AXES),
            (stage.mesh, ("dp", "cp")),
            (stage.mesh, stage.zero_axes),
            (stage.mesh, rest),
            *((stage.expert_mesh, (axis,)) for axis in EXPERT_AXES),
            (stage.expert_mesh, stage.expert_zero_axes),
            (stage.expert_mesh, expert_rest),
            (stage.mesh, stage.mesh.axes),
        ]
        found = [self._own(mesh, axes, ranks) for mesh, axes in asked]
        return StageGroups(*found) if self.rank in ranks else None  # type: ignore[arg-type]

    def _own(self, mesh: MeshSection | None, axes: Sequence[str], ranks: Sequence[int]) -> Group | None:
        """Makes all groups along some axes; returns the one that this process is in."""
        if mesh is None:
            return group_of_one(self.rank)
        made = [self.make([ranks[place] for place in places]) for places in mesh_groups(mesh, axes)]
        return next((group for group in made if group is not None), None)


def mesh_groups(mesh: MeshSection, axes: Sequence[str]) -> Iterator[tuple[int, ...]]:
    """Yields the groups along some axes of a mesh: places in the list of ranks, row-major.

    >>> mesh = MeshSection(axes=["dp", "cp", "tp"], sizes=[2, 1, 2])
    >>> list(mesh_groups(mesh, ["dp"])), list(mesh_groups(mesh, ["tp"]))
    ([(0, 2), (1, 3)], [(0, 1), (2, 3)])
    """
    strides = {axis: prod(mesh.sizes[at + 1 :]) for at, axis in enumerate(mesh.axes)}
    sizes = dict(zip(mesh.axes, mesh.sizes, strict=True))

    def offsets(names: Sequence[str]) -> list[int]:
        ranges = [range(0, sizes[name] * strides[name], strides[name]) for name in names]
        return [sum(place) for place in product(*ranges)]

    inner = offsets([axis for axis in mesh.axes if axis in axes])
    for start in offsets([axis for axis in mesh.axes if axis not in axes]):
        yield tuple(start + place for place in inner)
