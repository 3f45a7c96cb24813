"""Groups of ranks, as the meshes of a plan say them."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import RankPool
from torch_or_skip import torch

from tangram.plan.schema import LayerConfig, MeshSection
from tangram.runtime.groups import Group, GroupMaker, StageGroups, mesh_groups


def run_of(
    dp: int = 1,
    cp: int = 1,
    tp: int = 1,
    ep: int = 0,
    expert_tp: int = 1,
    zero_axes: tuple[str, ...] = (),
    expert_zero_axes: tuple[str, ...] = (),
) -> LayerConfig:
    """Degrees; without ``ep`` there are no experts."""
    size = dp * cp * tp
    experts = [size // (ep * expert_tp), ep, expert_tp] if ep else []
    return LayerConfig(
        atoms=(0, 1),
        mesh=MeshSection(axes=["dp", "cp", "tp"], sizes=[dp, cp, tp]),
        expert_mesh=MeshSection(axes=["expert_dp", "ep", "expert_tp"], sizes=experts) if ep else None,
        dp=dp,
        tp=tp,
        cp=cp,
        ep=ep or 1,
        expert_tp=expert_tp,
        sequence_parallel=tp > 1,
        micro_batch_per_dp_rank=[1] * dp,
        zero=3 if zero_axes else 0,
        zero_axes=list(zero_axes),
        expert_zero_axes=list(expert_zero_axes),
    )


@pytest.mark.parametrize(
    "axes", [("dp",), ("cp",), ("tp",), ("dp", "cp"), ("dp", "tp"), (), ("dp", "cp", "tp")]
)
def test_groups_are_those_of_an_array_of_the_mesh(axes: tuple[str, ...]) -> None:
    names, sizes = ["dp", "cp", "tp"], [2, 3, 4]
    array = np.arange(24).reshape(sizes)
    rest = [at for at, name in enumerate(names) if name not in axes]
    along = [at for at, name in enumerate(names) if name in axes]
    width = int(np.prod([sizes[at] for at in along]))
    expected = array.transpose([*rest, *along]).reshape(-1, width)
    found = list(mesh_groups(MeshSection(axes=names, sizes=sizes), axes))
    assert found == [tuple(row) for row in expected.tolist()]


def stages_of_rank(rank: int, sum_over: list[str]) -> tuple[dict[str, tuple[int, ...]], dict[str, float]]:
    """Ranks 0-3 are dp2 x tp2 with ep2; 4 and 5 are cp2. Says its groups and what sums over them give."""
    maker = GroupMaker(rank)
    first = maker.stage(
        run_of(dp=2, tp=2, ep=2, zero_axes=("dp",), expert_zero_axes=("expert_dp",)), [0, 1, 2, 3]
    )
    second = maker.stage(run_of(cp=2), [4, 5])
    own = first if rank < 4 else second
    other = second if rank < 4 else first
    assert own is not None
    assert other is None
    groups: dict[str, Group] = {name: getattr(own, name) for name in StageGroups.__dataclass_fields__}
    sums = {}
    for name in sum_over:
        value = torch.tensor(float(rank))
        if groups[name].handle is not None:
            torch.distributed.all_reduce(value, group=groups[name].handle)
        sums[name] = value.item()
    assert all(group.ranks[group.index] == rank for group in groups.values())
    return {name: group.ranks for name, group in groups.items()}, sums


def test_two_stages(ranks: RankPool) -> None:
    found = ranks.run(6, stages_of_rank, ["dp", "tp", "ep", "stage", "replicas"])
    groups = [item[0] for item in found]
    assert groups[1]["dp"] == groups[1]["shard"] == groups[1]["data"] == (1, 3)
    assert groups[1]["tp"] == groups[1]["ep"] == (0, 1)
    assert groups[1]["expert_dp"] == groups[1]["expert_shard"] == (1, 3)
    assert groups[1]["replicas"] == groups[1]["expert_replicas"] == groups[1]["expert_tp"] == (1,)
    assert groups[5]["cp"] == groups[5]["data"] == groups[5]["replicas"] == groups[5]["stage"] == (4, 5)
    assert groups[5]["shard"] == groups[5]["tp"] == groups[5]["ep"] == (5,)
    for rank, (own, sums) in enumerate(found):
        assert sums == {name: float(sum(own[name])) for name in sums}, rank


def test_alone() -> None:
    alone = StageGroups.alone(3)
    assert {getattr(alone, name).ranks for name in StageGroups.__dataclass_fields__} == {(3,)}
